//! What a value of a key may be: its type and bounds, checked in one place for every source.
//!
//! A rule prints itself as the words that an operator reads in an error and in the file.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

/// A value as a source wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    /// A whole number.
    Whole(u64),
    /// A text.
    Text(String),
}

impl Value {
    /// Takes a value of a TOML file.
    ///
    /// # Errors
    ///
    /// The value as it was written, when no key has such a value.
    pub(super) fn of_toml(value: &toml::Value) -> Result<Value, String> {
        match value {
            toml::Value::Integer(number) => {
                u64::try_from(*number).map(Value::Whole).map_err(|_| number.to_string())
            }
            toml::Value::String(text) => Ok(Value::Text(text.clone())),
            toml::Value::Float(_)
            | toml::Value::Boolean(_)
            | toml::Value::Datetime(_)
            | toml::Value::Array(_)
            | toml::Value::Table(_) => Err(shortened(&value.to_string())),
        }
    }
}

impl fmt::Display for Value {
    /// Writes it as TOML: thousands apart, text in quotes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Whole(number) => f.write_str(&grouped(*number)),
            Value::Text(text) => write!(f, "{}", toml::Value::String(shortened(text))),
        }
    }
}

/// Keeps an error readable when somebody configures a novel.
fn shortened(text: &str) -> String {
    /// More than any valid text has.
    const CHARS_MAX: usize = 4096;
    text.chars().take(CHARS_MAX).collect()
}

/// Writes a number with its thousands apart, as TOML and Rust allow: `65_536`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push('_');
        }
        text.push(digit);
    }
    text
}

/// The type and the bounds of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// A whole number, both ends included.
    Whole {
        /// The least.
        min: u64,
        /// The greatest.
        max: u64,
    },
    /// 1–128 bytes of printable ASCII without `/` and spaces.
    Name,
    /// The same, or empty for none.
    OptionalName,
    /// An IP address and a port; port 0 lets the system choose.
    Listen,
    /// `host:port`, or empty for none.
    OptionalAuthority,
    /// A directory's path.
    Path,
    /// One of these words.
    OneOf(&'static [&'static str]),
}

impl Rule {
    /// Takes a text of the environment or of a flag.
    ///
    /// # Errors
    ///
    /// The text, when it is not of the rule's type.
    pub(super) fn value_of_text(&self, text: &str) -> Result<Value, String> {
        match self {
            Rule::Whole { .. } => {
                let clean = text.trim();
                let digits = clean.replace('_', "");
                let plain = clean.starts_with(|c: char| c.is_ascii_digit())
                    && clean.chars().all(|c| c.is_ascii_digit() || c == '_');
                match digits.parse() {
                    Ok(number) if plain => Ok(Value::Whole(number)),
                    Ok(_) | Err(_) => Err(Value::Text(text.to_owned()).to_string()),
                }
            }
            Rule::Name
            | Rule::OptionalName
            | Rule::Listen
            | Rule::OptionalAuthority
            | Rule::Path
            | Rule::OneOf(_) => Ok(Value::Text(text.to_owned())),
        }
    }

    /// Checks a value.
    ///
    /// # Errors
    ///
    /// The rule in words.
    pub(super) fn check(&self, value: &Value) -> Result<(), String> {
        let holds = match (self, value) {
            (Rule::Whole { min, max }, Value::Whole(number)) => (min..=max).contains(&number),
            (Rule::Name, Value::Text(text)) => is_name(text),
            (Rule::OptionalName, Value::Text(text)) => text.is_empty() || is_name(text),
            (Rule::Listen, Value::Text(text)) => text.parse::<SocketAddr>().is_ok(),
            (Rule::OptionalAuthority, Value::Text(text)) => text.is_empty() || is_authority(text),
            (Rule::Path, Value::Text(text)) => {
                !text.is_empty() && text.len() <= 1024 && !text.contains('\0')
            }
            (Rule::OneOf(words), Value::Text(text)) => words.contains(&text.as_str()),
            (Rule::Whole { .. }, Value::Text(_))
            | (
                Rule::Name
                | Rule::OptionalName
                | Rule::Listen
                | Rule::OptionalAuthority
                | Rule::Path
                | Rule::OneOf(_),
                Value::Whole(_),
            ) => false,
        };
        if holds { Ok(()) } else { Err(self.to_string()) }
    }
}

fn is_name(text: &str) -> bool {
    (1..=128).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic() && b != b'/')
}

/// Tells whether a text is an address that others can reach: `host:port`.
pub(crate) fn is_authority(text: &str) -> bool {
    text.parse::<SocketAddr>().is_ok_and(|address| address.port() > 0)
        || text.rsplit_once(':').is_some_and(|(host, port)| {
            (1..=253).contains(&host.len())
                && host.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.')
                && port.bytes().all(|b| b.is_ascii_digit())
                && port.parse::<u16>().is_ok_and(|port| port > 0)
        })
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rule::Whole { min, max } => {
                write!(f, "a whole number, {} … {}", grouped(*min), grouped(*max))
            }
            Rule::Name => f.write_str("1–128 printable ASCII characters without `/` and spaces"),
            Rule::OptionalName => {
                f.write_str("1–128 printable ASCII characters without `/` and spaces, or empty")
            }
            Rule::Listen => f.write_str("an IP address and a port, as in \"127.0.0.1:7101\""),
            Rule::OptionalAuthority => {
                f.write_str("a host and a port, as in \"n1:7201\", or empty")
            }
            Rule::Path => f.write_str("a path, 1–1024 bytes"),
            Rule::OneOf(words) => write!(f, "one of {}", words.join(", ")),
        }
    }
}

/// A type that a key can have.
pub(super) trait Setting: Sized {
    /// Takes a value that the key's rule has passed; `None` when the type is narrower than that.
    fn of_value(value: &Value) -> Option<Self>;

    /// Returns the value that reads back as this.
    fn to_value(&self) -> Value;
}

macro_rules! whole_settings {
    ($($number:ty),+) => {
        $(impl Setting for $number {
            fn of_value(value: &Value) -> Option<Self> {
                match value {
                    Value::Whole(number) => <$number>::try_from(*number).ok(),
                    Value::Text(_) => None,
                }
            }

            fn to_value(&self) -> Value {
                Value::Whole(u64::try_from(*self).unwrap_or(u64::MAX))
            }
        })+
    };
}

whole_settings!(u16, u32, u64, usize);

fn text_of(value: &Value) -> Option<&str> {
    match value {
        Value::Text(text) => Some(text),
        Value::Whole(_) => None,
    }
}

impl Setting for String {
    fn of_value(value: &Value) -> Option<Self> {
        text_of(value).map(str::to_owned)
    }

    fn to_value(&self) -> Value {
        Value::Text(self.clone())
    }
}

impl Setting for Option<String> {
    fn of_value(value: &Value) -> Option<Self> {
        text_of(value).map(|text| (!text.is_empty()).then(|| text.to_owned()))
    }

    fn to_value(&self) -> Value {
        Value::Text(self.clone().unwrap_or_default())
    }
}

impl Setting for PathBuf {
    fn of_value(value: &Value) -> Option<Self> {
        text_of(value).map(PathBuf::from)
    }

    fn to_value(&self) -> Value {
        Value::Text(self.to_string_lossy().into_owned())
    }
}

impl Setting for SocketAddr {
    fn of_value(value: &Value) -> Option<Self> {
        text_of(value).and_then(|text| text.parse().ok())
    }

    fn to_value(&self) -> Value {
        Value::Text(self.to_string())
    }
}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident {
        $($(#[$variant_doc:meta])* $variant:ident = $word:literal),+
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$variant_doc])* $variant),+
        }

        impl $name {
            /// Every word, in order.
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            /// Returns the word that names it in a file.
            pub fn as_str(self) -> &'static str {
                match self {
                    $($name::$variant => $word),+
                }
            }
        }

        impl Setting for $name {
            fn of_value(value: &Value) -> Option<Self> {
                match text_of(value)? {
                    $($word => Some($name::$variant),)+
                    _ => None,
                }
            }

            fn to_value(&self) -> Value {
                Value::Text(self.as_str().to_owned())
            }
        }
    };
}

words! {
    /// How much a node says.
    LogLevel {
        /// Only what stops it.
        Error = "error",
        /// And what a person should look at.
        Warn = "warn",
        /// And the turns of its life: leaders, checkpoints, peers.
        Info = "info",
        /// And each batch.
        Debug = "debug",
        /// And everything.
        Trace = "trace"
    }
}

words! {
    /// Whether something is done.
    Switch {
        /// It is.
        On = "on",
        /// It is not.
        Off = "off"
    }
}

words! {
    /// How a node says it.
    LogFormat {
        /// Lines for people.
        Text = "text",
        /// One JSON object a line.
        Json = "json"
    }
}

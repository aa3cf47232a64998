//! One strict pass over a JSON body, into a small tree that borrows from it.
//!
//! It promises: RFC 8259 to the letter, UTF-8 only, no byte-order mark, no member twice in one
//! object however it is spelled (`"quantity"` and `"\u0071uantity"` are one name), nesting of at
//! most [`DEPTH_MAX`], a cost that is linear (objects with many members: n log n). Numbers keep
//! their spelling, so that the reader of a field can refuse `1.0` and 2^64 by name. It never
//! recurses deeper than [`DEPTH_MAX`] and never copies a string without escapes.

use std::borrow::Cow;

/// How deep objects and lists may nest. The deepest body of the contract needs 4.
pub(crate) const DEPTH_MAX: usize = 16;

/// Up to so many members are compared pair by pair; more are sorted.
const PAIRWISE_MAX: usize = 16;

/// A JSON value.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Json<'a> {
    Null,
    Bool(bool),
    /// As it was spelled.
    Number(&'a str),
    Text(Cow<'a, str>),
    List(Vec<Json<'a>>),
    Object(Members<'a>),
}

/// The members of an object, in their order, each name once.
pub(crate) type Members<'a> = Vec<(Cow<'a, str>, Json<'a>)>;

/// The bytes are not one JSON value as this API takes them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotJson {
    /// Which rule is broken, as a sentence.
    pub rule: Cow<'static, str>,
    /// The byte at which it is.
    pub at: usize,
}

/// Reads one JSON value with nothing but white space around it.
pub(crate) fn parse(body: &[u8]) -> Result<Json<'_>, NotJson> {
    let text = std::str::from_utf8(body)
        .map_err(|e| NotJson { rule: "the body is UTF-8".into(), at: e.valid_up_to() })?;
    let mut reader = Reader { text, bytes: body, at: 0 };
    reader.skip_space();
    let value = reader.value(0)?;
    reader.skip_space();
    if reader.at < body.len() {
        return reader.fail("the body is one JSON value and nothing behind it");
    }
    Ok(value)
}

struct Reader<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn fail<T>(&self, rule: impl Into<Cow<'static, str>>) -> Result<T, NotJson> {
        Err(NotJson { rule: rule.into(), at: self.at })
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn value(&mut self, depth: usize) -> Result<Json<'a>, NotJson> {
        match self.peek() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.list(depth),
            Some(b'"') => Ok(Json::Text(self.string()?)),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.word("true", Json::Bool(true)),
            Some(b'f') => self.word("false", Json::Bool(false)),
            Some(b'n') => self.word("null", Json::Null),
            Some(_) | None => self.fail("a JSON value is expected"),
        }
    }

    fn word(&mut self, word: &str, value: Json<'a>) -> Result<Json<'a>, NotJson> {
        if !self.bytes[self.at..].starts_with(word.as_bytes()) {
            return self.fail("a JSON value is expected");
        }
        self.at += word.len();
        Ok(value)
    }

    fn deeper(&mut self, depth: usize) -> Result<usize, NotJson> {
        if depth >= DEPTH_MAX {
            return self.fail(format!("objects and lists nest at most {DEPTH_MAX} deep"));
        }
        self.at += 1;
        self.skip_space();
        Ok(depth + 1)
    }

    fn object(&mut self, depth: usize) -> Result<Json<'a>, NotJson> {
        let depth = self.deeper(depth)?;
        let mut members: Members<'a> = Vec::new();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Json::Object(members));
        }
        members.reserve(6);
        loop {
            if self.peek() != Some(b'"') {
                return self.fail("a member's name in double quotes is expected");
            }
            let name_at = self.at;
            let name = self.string()?;
            if members.len() < PAIRWISE_MAX && members.iter().any(|(known, _)| *known == name) {
                self.at = name_at;
                return self.fail("an object has each member once, however it is spelled");
            }
            self.skip_space();
            if self.peek() != Some(b':') {
                return self.fail("`:` is expected");
            }
            self.at += 1;
            self.skip_space();
            let value = self.value(depth)?;
            members.push((name, value));
            self.skip_space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    break;
                }
                Some(_) | None => return self.fail("`,` or `}` is expected"),
            }
            self.skip_space();
        }
        if members.len() > PAIRWISE_MAX {
            let mut names: Vec<&str> = members.iter().map(|(name, _)| name.as_ref()).collect();
            names.sort_unstable();
            if names.windows(2).any(|pair| pair[0] == pair[1]) {
                return self.fail("an object has each member once, however it is spelled");
            }
        }
        Ok(Json::Object(members))
    }

    fn list(&mut self, depth: usize) -> Result<Json<'a>, NotJson> {
        let depth = self.deeper(depth)?;
        let mut values = Vec::new();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Json::List(values));
        }
        loop {
            values.push(self.value(depth)?);
            self.skip_space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(Json::List(values));
                }
                Some(_) | None => return self.fail("`,` or `]` is expected"),
            }
            self.skip_space();
        }
    }

    fn number(&mut self) -> Result<Json<'a>, NotJson> {
        let from = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else if self.digits() == 0 {
            return self.fail("a number has digits");
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            if self.digits() == 0 {
                return self.fail("a fraction has digits");
            }
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            if self.digits() == 0 {
                return self.fail("an exponent has digits");
            }
        }
        Ok(Json::Number(&self.text[from..self.at]))
    }

    fn digits(&mut self) -> usize {
        let from = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        self.at - from
    }

    /// Reads a string; the cursor stands on its opening quote.
    fn string(&mut self) -> Result<Cow<'a, str>, NotJson> {
        self.at += 1;
        let from = self.at;
        loop {
            match self.peek() {
                Some(b'"') => {
                    let text = &self.text[from..self.at];
                    self.at += 1;
                    return Ok(Cow::Borrowed(text));
                }
                Some(b'\\') => return self.escaped(from),
                Some(0..=0x1f) => return self.fail("a string has no bare control characters"),
                Some(_) => self.at += 1,
                None => return self.fail("a string ends with a double quote"),
            }
        }
    }

    /// Reads on in a string that has escapes; the cursor stands on the first backslash.
    fn escaped(&mut self, from: usize) -> Result<Cow<'a, str>, NotJson> {
        let mut text = self.text[from..self.at].to_owned();
        loop {
            let plain = self.at;
            while !matches!(self.peek(), Some(b'"' | b'\\' | 0..=0x1f) | None) {
                self.at += 1;
            }
            text.push_str(&self.text[plain..self.at]);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(Cow::Owned(text));
                }
                Some(b'\\') => {
                    self.at += 1;
                    text.push(self.escape()?);
                }
                Some(_) => return self.fail("a string has no bare control characters"),
                None => return self.fail("a string ends with a double quote"),
            }
        }
    }

    fn escape(&mut self) -> Result<char, NotJson> {
        let letter = self.peek();
        self.at += 1;
        Ok(match letter {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                let unit = self.four_hex()?;
                let code = match unit {
                    0xd800..=0xdbff => {
                        if !self.bytes[self.at.min(self.bytes.len())..].starts_with(b"\\u") {
                            return self.fail("a surrogate comes in a pair");
                        }
                        self.at += 2;
                        let low = self.four_hex()?;
                        if !(0xdc00..=0xdfff).contains(&low) {
                            return self.fail("a surrogate comes in a pair");
                        }
                        0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00)
                    }
                    other => other,
                };
                match char::from_u32(code) {
                    Some(c) => c,
                    None => return self.fail("a surrogate comes in a pair"),
                }
            }
            Some(_) | None => return self.fail("an escape is one of JSON's"),
        })
    }

    fn four_hex(&mut self) -> Result<u32, NotJson> {
        let mut value = 0;
        for _ in 0..4 {
            let Some(digit) = self.peek().and_then(|b| char::from(b).to_digit(16)) else {
                return self.fail("`\\u` is followed by four hexadecimal digits");
            };
            value = value * 16 + digit;
            self.at += 1;
        }
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rule(body: &[u8]) -> String {
        parse(body).expect_err("refused").rule.into_owned()
    }

    #[test]
    fn h02_a_member_twice_is_refused_in_every_spelling() {
        for body in [
            r#"{"quantity":1,"quantity":1}"#,
            r#"{"quantity":1,"quantity":2}"#,
            r#"{"quantity":1,"\u0071uantity":1}"#,
            r#"{"\u0071uantity":1,"quantity":1}"#,
            r#"{"a":1,"metadata":{"x":"1","\u0078":"1"}}"#,
            r#"{"a\/b":1,"a/b":1}"#,
            r#"[{"a":{"b":1,"b":1}}]"#,
        ] {
            assert_eq!(
                rule(body.as_bytes()),
                "an object has each member once, however it is spelled"
            );
        }
        let many: Vec<String> = (0..100).map(|n| format!("\"m{n}\":{n}")).collect();
        assert!(parse(format!("{{{}}}", many.join(",")).as_bytes()).is_ok());
        let twice = format!("{{{},\"\\u006d77\":1}}", many.join(","));
        assert_eq!(rule(twice.as_bytes()), "an object has each member once, however it is spelled");
    }

    #[test]
    fn h14_nesting_is_bounded_without_recursion_overflow() {
        let deep = |n: usize| [vec![b'['; n], vec![b']'; n]].concat();
        assert!(parse(&deep(DEPTH_MAX)).is_ok());
        assert_eq!(rule(&deep(DEPTH_MAX + 1)), "objects and lists nest at most 16 deep");
        assert_eq!(rule(&vec![b'['; 1 << 20]), "objects and lists nest at most 16 deep");
        let objects = "{\"a\":".repeat(100_000);
        assert_eq!(rule(objects.as_bytes()), "objects and lists nest at most 16 deep");
    }

    #[test]
    fn h05_spellings_that_are_not_json_are_refused() {
        for body in [
            "",
            " ",
            "01",
            "+1",
            "0x1",
            "1_000",
            "NaN",
            "Infinity",
            "-",
            "1.",
            ".5",
            "1e",
            "1e+",
            "'a'",
            "{a:1}",
            "{\"a\":1,}",
            "[1,]",
            "[1 2]",
            "{\"a\" 1}",
            "tru",
            "nul",
            "\"",
            "\"\\x\"",
            "\"\\u12\"",
            "\"\\ud800\"",
            "\"\\udc00\"",
            "\"\\ud800\\u0041\"",
            "\"a\nb\"",
            "{} {}",
            "1 1",
            "\u{feff}{}",
            "{\"a\":1",
            "[",
            "\"\\",
            "\"\\u",
            "\"\\ud800\\u",
            "// x\n1",
        ] {
            assert!(parse(body.as_bytes()).is_err(), "{body:?}");
        }
        assert_eq!(rule(b"\"\xff\""), "the body is UTF-8");
        assert_eq!(rule(b"\"\xc0\xaf\""), "the body is UTF-8");
    }

    #[test]
    fn numbers_keep_their_spelling() {
        for number in ["0", "-0", "1", "1.0", "1e0", "1E2", "-1", "18446744073709551616", "1e999"] {
            assert_eq!(parse(number.as_bytes()), Ok(Json::Number(number)));
        }
    }

    #[test]
    fn escapes_are_read_as_json_says() {
        let read = |body: &str| match parse(body.as_bytes()) {
            Ok(Json::Text(text)) => text.into_owned(),
            other => panic!("{other:?}"),
        };
        assert_eq!(read(r#""\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00""#), "\"\\/\u{8}\u{c}\n\r\té😀");
    }

    proptest! {
        /// An independent judge: what this reader takes, serde_json takes; what serde_json takes
        /// is refused here only for a rule of ours.
        #[test]
        fn it_agrees_with_serde_json(body in r#"[ \[\]{}:,"\\ua0-9eE+.tfnrlsx-]{0,24}"#) {
            let ours = parse(body.as_bytes());
            let theirs = serde_json::from_str::<serde_json::Value>(&body);
            match (&ours, &theirs) {
                (Ok(_), Err(e)) => {
                    prop_assert!(e.to_string().contains("out of range"), "{body} {e}");
                }
                (Err(e), Ok(_)) => prop_assert!(
                    e.rule.contains("once") || e.rule.contains("deep"), "{body} {e:?}"),
                (Ok(_), Ok(_)) | (Err(_), Err(_)) => {}
            }
        }
    }
}

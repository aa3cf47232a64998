//! Reads the members of an object field by field, and gathers every rule that is broken.
//!
//! Numbers are JSON integers, nothing else: `1.0`, `1e0`, `"1"`, `null`, `true` and anything out of
//! its range are refused with the field's name. `null` never means absent. A member that nobody
//! asked for is unknown, and refused. What is read is never changed or clipped.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::json::{Json, Members};
use crate::api::{self, FieldError, Timestamp, UNITS_MAX};

/// The rules that were broken so far.
#[derive(Debug, Default)]
pub(crate) struct Broken(pub Vec<FieldError>);

/// So many broken rules are told of at most, and so many bytes of a field's name.
const TOLD_MAX: usize = 100;

impl Broken {
    pub(crate) fn add(&mut self, field: impl Into<String>, rule: impl Into<String>) {
        if self.0.len() >= TOLD_MAX {
            return;
        }
        let mut field = field.into();
        if field.len() > 2 * api::ID_BYTES_MAX {
            field = field.chars().take(api::ID_BYTES_MAX).chain("…".chars()).collect();
        }
        self.0.push(FieldError { field, rule: rule.into() });
    }
}

/// An object whose members are taken one by one.
pub(crate) struct Fields<'a> {
    members: Members<'a>,
    /// Where the object stands, with a dot behind it; empty for the body itself.
    path: String,
}

impl<'a> Fields<'a> {
    /// Begins to read an object; anything else breaks a rule.
    pub(crate) fn of(json: Json<'a>, path: String, broken: &mut Broken) -> Option<Fields<'a>> {
        match json {
            Json::Object(members) => Some(Fields { members, path }),
            Json::Null | Json::Bool(_) | Json::Number(_) | Json::Text(_) | Json::List(_) => {
                let name = if path.is_empty() { "body" } else { path.trim_end_matches('.') };
                broken.add(name, "is an object");
                None
            }
        }
    }

    /// An object without members.
    pub(crate) fn none() -> Fields<'a> {
        Fields { members: Vec::new(), path: String::new() }
    }

    /// Whether a member of that name is there and not taken.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.members.iter().any(|(known, _)| known == name)
    }

    fn take(&mut self, name: &str) -> Option<Json<'a>> {
        let at = self.members.iter().position(|(known, _)| known == name)?;
        Some(self.members.swap_remove(at).1)
    }

    fn name(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }

    /// Reads an integer between `min` and `max`.
    pub(crate) fn integer(
        &mut self,
        name: &str,
        min: u64,
        max: u64,
        broken: &mut Broken,
    ) -> Option<u64> {
        let json = self.take(name)?;
        let value = match &json {
            Json::Number(spelling) if plain_digits(spelling) => spelling.parse().ok(),
            Json::Null
            | Json::Bool(_)
            | Json::Number(_)
            | Json::Text(_)
            | Json::List(_)
            | Json::Object(_) => None,
        };
        match value {
            Some(value) if (min..=max).contains(&value) => Some(value),
            Some(_) | None => {
                broken.add(self.name(name), format!("is an integer from {min} to {max}"));
                None
            }
        }
    }

    /// Reads a change of a total: an integer that is not 0, between −(2^53 − 1) and 2^53 − 1.
    pub(crate) fn delta(&mut self, name: &str, broken: &mut Broken) -> Option<i64> {
        let json = self.take(name)?;
        let value = match &json {
            Json::Number(spelling)
                if plain_digits(spelling.strip_prefix('-').unwrap_or(spelling)) =>
            {
                spelling.parse::<i64>().ok()
            }
            Json::Null
            | Json::Bool(_)
            | Json::Number(_)
            | Json::Text(_)
            | Json::List(_)
            | Json::Object(_) => None,
        };
        match value {
            Some(value) if value != 0 && value.unsigned_abs() <= UNITS_MAX => Some(value),
            Some(_) | None => {
                let rule = format!("is an integer from -{UNITS_MAX} to {UNITS_MAX} and not 0");
                broken.add(self.name(name), rule);
                None
            }
        }
    }

    /// Reads a quantity: an integer from 1 to 2^53 − 1.
    pub(crate) fn units(&mut self, name: &str, broken: &mut Broken) -> Option<u64> {
        self.integer(name, 1, UNITS_MAX, broken)
    }

    /// Reads a lifetime in ms; the rule names the maximum.
    pub(crate) fn ttl(&mut self, name: &str, broken: &mut Broken) -> Option<u64> {
        self.integer(name, 1, api::TTL_MS_MAX, broken)
    }

    /// Reads `true` or `false`.
    pub(crate) fn flag(&mut self, name: &str, broken: &mut Broken) -> Option<bool> {
        match self.take(name)? {
            Json::Bool(value) => Some(value),
            Json::Null | Json::Number(_) | Json::Text(_) | Json::List(_) | Json::Object(_) => {
                broken.add(self.name(name), "is true or false");
                None
            }
        }
    }

    /// Reads an id: 1–128 bytes of printable ASCII without `/`.
    pub(crate) fn id(&mut self, name: &str, broken: &mut Broken) -> Option<String> {
        self.id_text(name, broken).map(Cow::into_owned)
    }

    /// Reads an id where it stands.
    pub(crate) fn id_text(&mut self, name: &str, broken: &mut Broken) -> Option<Cow<'a, str>> {
        match self.take(name)? {
            Json::Text(text) => match api::check_id(text.as_bytes()) {
                Ok(()) => Some(text),
                Err(rule) => {
                    broken.add(self.name(name), rule);
                    None
                }
            },
            Json::Null | Json::Bool(_) | Json::Number(_) | Json::List(_) | Json::Object(_) => {
                broken.add(self.name(name), "is a string");
                None
            }
        }
    }

    /// Reads a text of 1 to `bytes_max` bytes without control characters.
    pub(crate) fn text(
        &mut self,
        name: &str,
        bytes_max: usize,
        broken: &mut Broken,
    ) -> Option<Cow<'a, str>> {
        match self.take(name)? {
            Json::Text(text)
                if (1..=bytes_max).contains(&text.len()) && !text.contains(char::is_control) =>
            {
                Some(text)
            }
            Json::Null
            | Json::Bool(_)
            | Json::Number(_)
            | Json::Text(_)
            | Json::List(_)
            | Json::Object(_) => {
                let rule = format!("is a text of 1 to {bytes_max} bytes, no control characters");
                broken.add(self.name(name), rule);
                None
            }
        }
    }

    /// Reads 16 bytes in lower-case hex.
    pub(crate) fn hex16(&mut self, name: &str, broken: &mut Broken) -> Option<[u8; 16]> {
        let text = match self.take(name)? {
            Json::Text(text) => text,
            Json::Null | Json::Bool(_) | Json::Number(_) | Json::List(_) | Json::Object(_) => {
                "".into()
            }
        };
        let value = (text.len() == 32
            && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')))
        .then(|| u128::from_str_radix(&text, 16).ok())
        .flatten();
        if value.is_none() {
            broken.add(self.name(name), "is 32 lower-case hexadecimal digits");
        }
        value.map(u128::to_be_bytes)
    }

    /// Reads a moment.
    pub(crate) fn time(&mut self, name: &str, broken: &mut Broken) -> Option<Timestamp> {
        let read = match self.take(name)? {
            Json::Text(text) => text.parse::<Timestamp>(),
            Json::Null | Json::Bool(_) | Json::Number(_) | Json::List(_) | Json::Object(_) => {
                Err(api::NotATimestamp)
            }
        };
        match read {
            Ok(at) => Some(at),
            Err(rule) => {
                broken.add(self.name(name), rule.to_string());
                None
            }
        }
    }

    /// Begins to read a nested object.
    pub(crate) fn object(&mut self, name: &str, broken: &mut Broken) -> Option<Fields<'a>> {
        let json = self.take(name)?;
        Fields::of(json, format!("{}{name}.", self.path), broken)
    }

    /// Takes a list.
    pub(crate) fn list(&mut self, name: &str, broken: &mut Broken) -> Option<Vec<Json<'a>>> {
        match self.take(name)? {
            Json::List(values) => Some(values),
            Json::Null | Json::Bool(_) | Json::Number(_) | Json::Text(_) | Json::Object(_) => {
                broken.add(self.name(name), "is a list");
                None
            }
        }
    }

    /// Reads a map of nested objects by id.
    pub(crate) fn objects(
        &mut self,
        name: &str,
        broken: &mut Broken,
    ) -> Option<Vec<(String, Fields<'a>)>> {
        let outer = self.object(name, broken)?;
        let mut read = Vec::new();
        for (key, value) in outer.members {
            if let Err(rule) = api::check_id(key.as_bytes()) {
                broken.add(format!("{}{key}", outer.path), format!("its name {rule}"));
                continue;
            }
            let path = format!("{}{key}.", outer.path);
            if let Some(fields) = Fields::of(value, path, broken) {
                read.push((key.into_owned(), fields));
            }
        }
        Some(read)
    }

    /// Reads a map of texts that is at most `bytes_max` bytes in all, names included.
    pub(crate) fn texts(
        &mut self,
        name: &str,
        bytes_max: usize,
        broken: &mut Broken,
    ) -> Option<BTreeMap<String, String>> {
        let outer = self.object(name, broken)?;
        let mut bytes = 0;
        let mut read = BTreeMap::new();
        for (key, value) in outer.members {
            match value {
                Json::Text(text) => {
                    bytes += key.len() + text.len();
                    read.insert(key.into_owned(), text.into_owned());
                }
                Json::Null | Json::Bool(_) | Json::Number(_) | Json::List(_) | Json::Object(_) => {
                    broken.add(format!("{}{key}", outer.path), "is a string");
                }
            }
        }
        if bytes > bytes_max {
            broken.add(self.name(name), format!("is at most {bytes_max} bytes in all"));
        }
        Some(read)
    }

    /// Reads the address of a node, which must be there: `host:port`.
    pub(crate) fn address(
        &mut self,
        name: &str,
        max: usize,
        broken: &mut Broken,
    ) -> Option<String> {
        let read = self.text(name, max, broken);
        let address = self.require(name, read, broken)?;
        if !crate::config::is_authority(&address) {
            broken.add(self.name(name), "is host:port, as others reach it");
            return None;
        }
        Some(address.into_owned())
    }

    /// Unwraps a field that must be there. A field that was there and broke a rule is not said to
    /// be missing as well: `broken` has it already.
    pub(crate) fn require<T>(&self, name: &str, read: Option<T>, broken: &mut Broken) -> Option<T> {
        if read.is_some() {
            return read;
        }
        let name = self.name(name);
        if !broken.0.iter().any(|error| error.field == name) {
            broken.add(name, "is required");
        }
        read
    }

    /// Ends the reading: what nobody took is unknown.
    pub(crate) fn end(self, broken: &mut Broken) {
        for (name, _) in &self.members {
            broken.add(format!("{}{name}", self.path), "is not a field of this request");
        }
    }
}

fn plain_digits(spelling: &str) -> bool {
    !spelling.is_empty() && spelling.bytes().all(|b| b.is_ascii_digit())
}

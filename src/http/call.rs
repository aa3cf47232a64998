//! One request as it was read: its names, headers, query and body, each checked once.
//!
//! Names in the path are percent-decoded exactly once, from the raw path: `%2F` is a byte of the
//! name and is refused there, `%252F` is the name `%2F`. A query parameter that is unknown or given
//! twice is refused, and so are two different values of a header that may be there once.

use std::borrow::Cow;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::header::{self, HeaderName};
use axum::http::request::Parts;

use super::fields::{Broken, Fields};
use super::json::{self, Json};
use super::problem::{Failure, not_found, validation};
use crate::api::{self, ProblemKind};
use crate::ledger::{HoldId, ItemName};
use crate::runtime::Instant;
use crate::shard::{Consistency, Hop};

const TENANT: HeaderName = HeaderName::from_static(api::HEADER_TENANT);
const KEY: HeaderName = HeaderName::from_static(api::HEADER_KEY);
const DEADLINE: HeaderName = HeaderName::from_static(api::HEADER_DEADLINE);
const PREFER: HeaderName = HeaderName::from_static("prefer");

/// A request.
pub(crate) struct Call {
    pub parts: Parts,
    pub body: Bytes,
    pub arrived: Instant,
}

impl Call {
    /// Returns the path's segment at `at` (counted from 0), decoded.
    fn segment(&self, at: usize) -> Result<Cow<'_, [u8]>, Failure> {
        let path = self.parts.uri.path();
        let raw = path.split('/').nth(at + 1).unwrap_or_default();
        percent_decode(raw).ok_or_else(|| {
            Failure::malformed(format!("`{raw}` in the path is not percent-encoded text."))
        })
    }

    /// Returns an id of the caller in the path.
    pub(crate) fn id_in_path(&self, at: usize, what: &str) -> Result<String, Failure> {
        let id = self.segment(at)?;
        id_of(&id, || format!("The {what} in the path"))
    }

    /// Returns the item that the path names (`/v1/items/{item}…`).
    pub(crate) fn item(&self) -> Result<ItemName, Failure> {
        Ok(ItemName { tenant: self.tenant()?, item: self.id_in_path(2, "item")? })
    }

    /// Returns the hold that the path names (`/v1/holds/{id}…`): a text that is no hold id names no
    /// hold.
    pub(crate) fn hold(&self) -> Result<HoldId, Failure> {
        let raw = self.segment(2)?;
        std::str::from_utf8(&raw)
            .ok()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| not_found("hold").into())
    }

    /// Returns the only value of a header, without white space around it.
    fn header(&self, name: &HeaderName) -> Result<Option<&[u8]>, Failure> {
        let mut values = self.parts.headers.get_all(name).iter().map(|v| trim(v.as_bytes()));
        let Some(first) = values.next() else { return Ok(None) };
        if values.any(|other| other != first) {
            let words = format!("`{name}` is given twice with different values. Send it once.");
            return Err(Failure::malformed(words));
        }
        Ok(Some(first))
    }

    /// Returns the tenant.
    pub(crate) fn tenant(&self) -> Result<String, Failure> {
        match self.header(&TENANT)? {
            Some(tenant) => id_of(tenant, || "The header Holdfast-Tenant".to_owned()),
            None => Ok("default".to_owned()),
        }
    }

    /// Returns the idempotency key.
    pub(crate) fn key(&self) -> Result<String, Failure> {
        match self.header(&KEY)? {
            Some(key) => id_of(key, || "The header Idempotency-Key".to_owned()),
            None => Err(Failure::new(
                ProblemKind::KeyMissing,
                "This call needs the header Idempotency-Key: a fresh one for each decision, the \
                 same one on every retry of it.",
            )),
        }
    }

    /// Returns the moment by which the caller wants an answer.
    pub(crate) fn deadline(&self) -> Result<Instant, Failure> {
        let ms = match self.header(&DEADLINE)? {
            None => api::DEADLINE_MS_DEFAULT,
            Some(value) => digits(value)
                .filter(|ms| (1..=api::DEADLINE_MS_MAX).contains(ms))
                .ok_or_else(|| {
                    Failure::malformed(format!(
                        "The header Holdfast-Deadline-Ms is an integer from 1 to {}.",
                        api::DEADLINE_MS_MAX
                    ))
                })?,
        };
        Ok(self.arrived + Duration::from_millis(ms))
    }

    /// Returns what to do when another node leads.
    pub(crate) fn hop(&self) -> Hop {
        let redirect = self.parts.headers.get_all(&PREFER).iter().any(|value| {
            value.as_bytes().split(|b| *b == b',').any(|one| {
                trim(one.split(|b| *b == b';').next().unwrap_or_default())
                    .eq_ignore_ascii_case(b"redirect")
            })
        });
        if redirect { Hop::Redirect } else { Hop::Forward }
    }

    /// Returns the revision that the caller has read.
    pub(crate) fn if_match(&self) -> Result<Option<u64>, Failure> {
        let Some(value) = self.header(&header::IF_MATCH)? else { return Ok(None) };
        let quoted = value.strip_prefix(b"\"").and_then(|v| v.strip_suffix(b"\""));
        match digits(quoted.unwrap_or(value)) {
            Some(revision) => Ok(Some(revision)),
            None => Err(Failure::malformed(
                "If-Match is one revision, as the ETag of the item gave it, like \"17\".",
            )),
        }
    }

    /// Whether the caller has what carries this entity tag.
    pub(crate) fn has_already(&self, etag: &[u8]) -> bool {
        self.parts.headers.get_all(header::IF_NONE_MATCH).iter().any(|value| {
            value
                .as_bytes()
                .split(|b| *b == b',')
                .map(trim)
                .any(|tag| tag == b"*" || tag.strip_prefix(b"W/").unwrap_or(tag) == etag)
        })
    }

    /// Reads the query: each parameter of `known` at most once, and no other.
    pub(crate) fn query(&self, known: &[&'static str]) -> Result<Parameters, Failure> {
        let mut read: Vec<(&'static str, String)> = Vec::new();
        for pair in self.parts.uri.query().unwrap_or_default().split('&') {
            if pair.is_empty() {
                continue;
            }
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let text = |raw| {
                percent_decode(raw).and_then(|b| String::from_utf8(b.into_owned()).ok()).ok_or_else(
                    || {
                        Failure::malformed(format!(
                            "`{pair}` in the query is not percent-encoded UTF-8."
                        ))
                    },
                )
            };
            let (name, value) = (text(name)?, text(value)?);
            let Some(name) = known.iter().find(|k| **k == name) else {
                let words = match known {
                    [] => "This call takes no query parameters.".to_owned(),
                    known => format!("The query parameters are {}, no others.", known.join(", ")),
                };
                return Err(Failure::malformed(words));
            };
            if read.iter().any(|(given, _)| given == name) {
                return Err(Failure::malformed(format!("The query gives `{name}` twice.")));
            }
            read.push((*name, value));
        }
        Ok(Parameters(read))
    }

    /// Reads the body as an object; `optional` says that it may be empty, which means `{}`.
    pub(crate) fn fields(&self, optional: bool) -> Result<Fields<'_>, Failure> {
        if self.body.is_empty() {
            if optional {
                return Ok(Fields::none());
            }
            return Err(Failure::malformed("This call needs a JSON object as its body."));
        }
        let mut broken = Broken::default();
        let fields = Fields::of(self.json()?, String::new(), &mut broken);
        fields.ok_or_else(|| validation(broken.0).into())
    }

    /// Reads the body as JSON.
    fn json(&self) -> Result<Json<'_>, Failure> {
        let kind = self.header(&header::CONTENT_TYPE)?.unwrap_or_default();
        let kind = trim(kind.split(|b| *b == b';').next().unwrap_or_default());
        if !kind.eq_ignore_ascii_case(b"application/json") {
            return Err(Failure::malformed(
                "The body is JSON: send it with `Content-Type: application/json`.",
            ));
        }
        json::parse(&self.body).map_err(|e| {
            Failure::malformed(format!(
                "The body is not JSON as this API takes it: {} (at byte {}).",
                e.rule, e.at
            ))
        })
    }
}

/// The parameters of a query.
pub(crate) struct Parameters(Vec<(&'static str, String)>);

impl Parameters {
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }

    /// Returns an id.
    pub(crate) fn id(&self, name: &str) -> Result<Option<String>, Failure> {
        self.text(name)
            .map(|value| id_of(value.as_bytes(), || format!("The query parameter `{name}`")))
            .transpose()
    }

    /// Returns an id that must be there.
    pub(crate) fn required_id(&self, name: &str) -> Result<String, Failure> {
        self.id(name)?.ok_or_else(|| {
            Failure::malformed(format!("This call needs the query parameter `{name}`."))
        })
    }

    /// Returns how many entries the caller wants on a page.
    pub(crate) fn limit(&self) -> Result<u32, Failure> {
        self.limit_to(api::LIST_LIMIT_MAX, api::LIST_LIMIT_DEFAULT)
    }

    /// Returns how many entries a page of at most `max` may have.
    pub(crate) fn limit_to(&self, max: u32, default: u32) -> Result<u32, Failure> {
        match self.text("limit") {
            None => Ok(default),
            Some(text) => digits(text.as_bytes())
                .and_then(|n| u32::try_from(n).ok())
                .filter(|n| (1..=max).contains(n))
                .ok_or_else(|| {
                    Failure::malformed(format!("`limit` is an integer from 1 to {max}."))
                }),
        }
    }

    /// Returns how fresh the answer must be.
    pub(crate) fn consistency(&self, default: Consistency) -> Result<Consistency, Failure> {
        match self.text("consistency") {
            None => Ok(default),
            Some("local") => Ok(Consistency::Local),
            Some("leader") => Ok(Consistency::Leader),
            Some("linearizable") => Ok(Consistency::Linearizable),
            Some(_) => {
                Err(Failure::malformed("`consistency` is `local`, `leader` or `linearizable`."))
            }
        }
    }
}

fn id_of(id: &[u8], what: impl FnOnce() -> String) -> Result<String, Failure> {
    match api::check_id(id) {
        Ok(()) => Ok(String::from_utf8(id.to_vec()).expect("check_id lets only ASCII pass")),
        Err(rule) => Err(Failure::malformed(format!("{} {rule}.", what()))),
    }
}

fn digits(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn trim(value: &[u8]) -> &[u8] {
    let blank = |b: &u8| matches!(b, b' ' | b'\t');
    let from = value.iter().position(|b| !blank(b)).unwrap_or(value.len());
    let to = value.iter().rposition(|b| !blank(b)).map_or(from, |at| at + 1);
    &value[from..to]
}

/// Decodes `%XX` exactly once; `None` when a `%` is not followed by two hexadecimal digits.
fn percent_decode(raw: &str) -> Option<Cow<'_, [u8]>> {
    let bytes = raw.as_bytes();
    if !bytes.contains(&b'%') {
        return Some(Cow::Borrowed(bytes));
    }
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let [first, tail @ ..] = rest {
        if *first != b'%' {
            decoded.push(*first);
            rest = tail;
            continue;
        }
        let [high, low, tail @ ..] = tail else { return None };
        let digit = |b: u8| char::from(b).to_digit(16).and_then(|d| u8::try_from(d).ok());
        decoded.push(digit(*high)? << 4 | digit(*low)?);
        rest = tail;
    }
    Some(Cow::Owned(decoded))
}

/// Writes an id as one segment of a path.
pub(crate) fn percent_encode(id: &str) -> String {
    let mut text = String::with_capacity(id.len());
    for byte in id.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

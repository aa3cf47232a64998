//! Moments on the wire: RFC 3339, UTC, milliseconds. Reading is strict, writing is exact.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{KnownFormat, ObjectBuilder, Schema, SchemaFormat, Type};
use utoipa::{PartialSchema, ToSchema};

/// Milliseconds since 1970-01-01T00:00:00Z, on the wire `2026-05-01T09:30:00.000Z`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

/// The last moment that has a four-digit year: 9999-12-31T23:59:59.999Z.
pub const TIMESTAMP_MAX: Timestamp = Timestamp(253_402_300_799_999);

/// The text is not a moment as this API writes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("is a time like 2026-05-01T09:30:00.000Z (RFC 3339, UTC, at most milliseconds)")]
pub struct NotATimestamp;

const DAY_MS: u64 = 86_400_000;

impl fmt::Display for Timestamp {
    /// Writes 24 bytes; a moment after [`TIMESTAMP_MAX`] is written as that one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.min(TIMESTAMP_MAX.0);
        let (year, month, day) = civil(ms / DAY_MS);
        let rest = ms % DAY_MS;
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:03}Z",
            rest / 3_600_000,
            rest / 60_000 % 60,
            rest / 1_000 % 60,
            rest % 1_000
        )
    }
}

impl FromStr for Timestamp {
    type Err = NotATimestamp;

    fn from_str(text: &str) -> Result<Timestamp, NotATimestamp> {
        let bytes = text.as_bytes();
        let shape = b"0000-00-00T00:00:00";
        if bytes.len() < shape.len() + 1 || bytes.last() != Some(&b'Z') {
            return Err(NotATimestamp);
        }
        for (byte, wanted) in bytes.iter().zip(shape) {
            if (*wanted == b'0' && !byte.is_ascii_digit()) || (*wanted != b'0' && byte != wanted) {
                return Err(NotATimestamp);
            }
        }
        let number = |from: usize, to: usize| {
            bytes[from..to].iter().fold(0u64, |n, b| n * 10 + u64::from(b - b'0'))
        };
        let (year, month, day) = (number(0, 4), number(5, 7), number(8, 10));
        let (hour, minute, second) = (number(11, 13), number(14, 16), number(17, 19));
        let fraction = &bytes[19..bytes.len() - 1];
        let ms = match fraction {
            [] => 0,
            [b'.', digits @ ..]
                if (1..=3).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit) =>
            {
                let scale = [100, 10, 1][digits.len() - 1];
                digits.iter().fold(0u64, |n, b| n * 10 + u64::from(b - b'0')) * scale
            }
            [..] => return Err(NotATimestamp),
        };
        let real = year >= 1970
            && (1..=12).contains(&month)
            && (1..=days_in(year, month)).contains(&day)
            && hour < 24
            && minute < 60
            && second < 60;
        if !real {
            return Err(NotATimestamp);
        }
        let clock = ((hour * 60 + minute) * 60 + second) * 1_000 + ms;
        Ok(Timestamp(days_since_1970(year, month, day) * DAY_MS + clock))
    }
}

fn leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_in(year: u64, month: u64) -> u64 {
    match month {
        2 => 28 + u64::from(leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 1970-01-01 to a day of the proleptic Gregorian calendar from 1970 on.
fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    // Years begin in March, so that the leap day is the last: (H. Hinnant, days_from_civil).
    let y = if month <= 2 { year - 1 } else { year };
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let of_era = y % 400 * 365 + y % 400 / 4 - y % 400 / 100 + of_year;
    y / 400 * 146_097 + of_era - 719_468
}

/// The day that lies `days` after 1970-01-01, as year, month, day.
fn civil(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let (era, of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let mp = (5 * of_year + 2) / 153;
    let day = of_year - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl PartialSchema for Timestamp {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
            .description(Some("RFC 3339, UTC, at most milliseconds"))
            .build()
            .into()
    }
}

impl ToSchema for Timestamp {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_day_until_the_year_3000_survives_the_round_trip() {
        let mut last = (1969, 12, 31);
        for day in 0..376_200 {
            let at = Timestamp(day * DAY_MS + 12_345_678);
            assert_eq!(at.to_string().parse(), Ok(at));
            let now = civil(day);
            assert!(now > last, "{now:?} after {last:?}");
            last = now;
        }
    }

    #[test]
    fn known_moments_are_written_as_calendars_write_them() {
        assert_eq!(Timestamp(0).to_string(), "1970-01-01T00:00:00.000Z");
        assert_eq!(Timestamp(1_709_164_799_999).to_string(), "2024-02-28T23:59:59.999Z");
        assert_eq!(Timestamp(1_709_164_800_000).to_string(), "2024-02-29T00:00:00.000Z");
        assert_eq!(TIMESTAMP_MAX.to_string(), "9999-12-31T23:59:59.999Z");
        assert_eq!("2024-02-29T00:00:00Z".parse(), Ok(Timestamp(1_709_164_800_000)));
        assert_eq!("2024-02-29T00:00:00.5Z".parse(), Ok(Timestamp(1_709_164_800_500)));
    }

    #[test]
    fn a_time_that_no_calendar_has_or_that_is_spelled_otherwise_is_refused() {
        for text in [
            "",
            "2023-02-29T00:00:00Z",
            "2024-13-01T00:00:00Z",
            "2024-00-01T00:00:00Z",
            "2024-04-31T00:00:00Z",
            "2024-04-30T24:00:00Z",
            "2024-04-30T23:60:00Z",
            "2024-04-30T23:59:60Z",
            "2024-04-30 23:59:00Z",
            "2024-04-30t23:59:00z",
            "2024-04-30T23:59:00+00:00",
            "2024-04-30T23:59:00.Z",
            "2024-04-30T23:59:00.0000Z",
            "2024-04-30T23:59:00",
            "1969-12-31T23:59:59Z",
            "+2024-04-30T23:59:0Z",
            "２０２４-04-30T23:59:00Z",
        ] {
            assert_eq!(text.parse::<Timestamp>(), Err(NotATimestamp), "{text}");
        }
    }
}

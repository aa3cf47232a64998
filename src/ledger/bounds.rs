//! What a value may be, whatever the edge let through: the ledger is total.
//!
//! Promises: every check is a pure function of the command. Never looks at the state.

use super::answer::{Answer, Refusal};
use super::command::{Definition, KeyScope};
use super::ids::{NameRef, QUANTITY_MAX};

/// Either what to do, or the answer that is given at once.
pub(super) type Decided<T> = Result<T, Box<Answer>>;

/// Longest name of a tenant, item, region, buyer or key, in bytes.
const NAME_BYTES_MAX: usize = 128;
/// Longest reference and reason of a hold, in bytes.
pub(super) const REFERENCE_BYTES_MAX: usize = 128;
/// Longest reason of an adjustment, in bytes.
const REASON_BYTES_MAX: usize = 256;
/// Most bytes of an item's metadata.
const METADATA_BYTES_MAX: usize = 4096;
/// The longest lifetime that any hold may have: 366 days in ms.
pub(super) const LIFETIME_MS_LIMIT: u64 = 366 * 86_400_000;

/// A refusal as a decision.
pub(super) fn refuse<T>(refusal: Refusal) -> Decided<T> {
    Err(Box::new(Answer::Refused(refusal)))
}

/// The refusal of a value that breaks a rule.
pub(super) fn invalid<T>(field: &str, rule: &str) -> Decided<T> {
    refuse(Refusal::Invalid { field: field.to_owned(), rule: rule.to_owned() })
}

/// 1–128 bytes of printable ASCII without `/`.
pub(super) fn name(field: &str, text: &str) -> Decided<()> {
    let right = !text.is_empty()
        && text.len() <= NAME_BYTES_MAX
        && text.bytes().all(|byte| (0x20..0x7f).contains(&byte) && byte != b'/');
    if right { Ok(()) } else { invalid(field, "must be 1-128 bytes of printable ASCII without /") }
}

/// An item's two names.
pub(super) fn item_name(item: NameRef<'_>) -> Decided<()> {
    name("tenant", item.tenant)?;
    name("item", item.item)
}

/// A key and all that it is scoped by.
pub(super) fn scope(scope: &KeyScope) -> Decided<()> {
    placing(scope.name.borrowed(), scope.region.as_deref(), scope.buyer.as_deref(), &scope.key)
}

/// The names of a placement.
pub(super) fn placing(
    item: NameRef<'_>,
    region: Option<&str>,
    buyer: Option<&str>,
    key: &str,
) -> Decided<()> {
    item_name(item)?;
    if let Some(region) = region {
        name("region", region)?;
    }
    if let Some(buyer) = buyer {
        name("buyer", buyer)?;
    }
    name("key", key)
}

/// A caller's own words about a hold.
pub(super) fn reference(field: &str, text: Option<&str>) -> Decided<()> {
    match text {
        Some(text) if text.len() > REFERENCE_BYTES_MAX => {
            invalid(field, "must be at most 128 bytes")
        }
        Some(_) | None => Ok(()),
    }
}

/// A caller's reason for an adjustment.
pub(super) fn reason(text: &str) -> Decided<()> {
    if text.len() > REASON_BYTES_MAX {
        return invalid("reason", "must be at most 256 bytes");
    }
    Ok(())
}

/// A number of units that moves: 1 … 2^53 − 1.
pub(super) fn quantity(field: &str, units: u64) -> Decided<()> {
    if (1..=QUANTITY_MAX).contains(&units) {
        Ok(())
    } else {
        invalid(field, "must be from 1 to 9007199254740991")
    }
}

/// A number of units that exists: 0 … 2^53 − 1.
pub(super) fn stock(field: &str, units: u64) -> Decided<()> {
    if units <= QUANTITY_MAX { Ok(()) } else { invalid(field, "must be at most 9007199254740991") }
}

/// A definition by itself.
pub(super) fn definition(definition: &Definition) -> Decided<()> {
    let rules = &definition.rules;
    if rules.lifetime_ms_max > LIFETIME_MS_LIMIT {
        return invalid("hold.max_lifetime_ms", "must be at most 31622400000, which is 366 days");
    }
    if rules.ttl_ms_max > rules.lifetime_ms_max {
        return invalid("hold.max_ttl_ms", "must be at most max_lifetime_ms");
    }
    if rules.ttl_ms == 0 || rules.ttl_ms > rules.ttl_ms_max {
        return invalid("hold.ttl_ms", "must be from 1 to max_ttl_ms");
    }
    if let Some(limit) = definition.limit_per_buyer {
        quantity("limit_per_buyer", limit)?;
    }
    if let (Some(opens), Some(closes)) = (definition.opens_at, definition.closes_at)
        && opens >= closes
    {
        return invalid("sale.closes_at", "must be after opens_at");
    }
    let bytes = definition.metadata.iter().fold(0_usize, |sum, (key, value)| {
        sum.saturating_add(key.len()).saturating_add(value.len())
    });
    if bytes > METADATA_BYTES_MAX {
        return invalid("metadata", "must be at most 4096 bytes of keys and values in all");
    }
    Ok(())
}

/// A number of units in words.
pub(super) fn units_in_words(units: u64) -> String {
    if units == 1 { "1 unit".to_owned() } else { format!("{units} units") }
}

//! `holdfast audit`: is every unit accounted for?

use clap::Args;
use comfy_table::Table;
use serde_json::{Value, json};

use super::output::{Voice, list_in, members, table};
use super::{Failure, Reach};
use crate::client::{Client, path_segment};

/// Items on one page of the list.
const PAGE: usize = 500;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast audit
  holdfast audit ticket-1
  holdfast audit --item ticket-1 --json

Exits 1 when a law is broken.")]
pub(super) struct AuditVerb {
    /// Only this item; all of the tenant's when absent.
    item: Option<String>,
    /// The same by name.
    #[arg(long = "item", value_name = "ITEM", conflicts_with = "item")]
    item_named: Option<String>,
}

impl AuditVerb {
    pub(super) async fn run(self, reach: Reach) -> Result<(), Failure> {
        let client = reach.client()?;
        let voice = reach.voice();
        match self.item.or(self.item_named) {
            Some(item) => one(&client, voice, &item).await,
            None => all(&client, voice).await,
        }
    }
}

/// Audits one item and shows its sums.
pub(super) async fn one(client: &Client, voice: Voice, item: &str) -> Result<(), Failure> {
    let audit = read(client, item).await?;
    voice.data(&audit, || members(&audit));
    verdict(&[(item.to_owned(), holds(&audit))])
}

async fn all(client: &Client, voice: Voice) -> Result<(), Failure> {
    let mut audits = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let tail = cursor.map(|c| format!("&cursor={}", path_segment(&c))).unwrap_or_default();
        let page = client.get(&format!("/v1/items?limit={PAGE}{tail}")).await?.body;
        for item in list_in(&page) {
            let Some(name) = name_of(item) else {
                return Err(Failure::Usage("an item in the list has no name".into()));
            };
            audits.push((name.to_owned(), read(client, name).await?));
        }
        match page.get("next_cursor").and_then(Value::as_str) {
            Some(next) => cursor = Some(next.to_owned()),
            None => break,
        }
    }
    let verdicts: Vec<_> =
        audits.iter().map(|(name, audit)| (name.clone(), holds(audit))).collect();
    let whole = verdicts.iter().all(|(_, holds)| *holds);
    let shown = json!({
        "conserved": whole,
        "items": audits.iter().map(|(_, audit)| audit).collect::<Vec<_>>(),
    });
    voice.data(&shown, || audits_table(&audits));
    if whole {
        voice.say(&format!("{} items, every unit accounted for", audits.len()));
    }
    verdict(&verdicts)
}

/// Reads one item's audit.
pub(super) async fn read(client: &Client, item: &str) -> Result<Value, Failure> {
    Ok(client.get(&format!("/v1/items/{}/audit", path_segment(item))).await?.body)
}

/// Whether an audit says that every equation holds. Absent is not "yes".
pub(super) fn holds(audit: &Value) -> bool {
    audit.get("conserved").and_then(Value::as_bool) == Some(true)
}

/// A sum of an audit: the item's own, or over its buckets.
pub(super) fn sum(audit: &Value, name: &str) -> u64 {
    if let Some(sum) = audit.get(name).and_then(Value::as_u64) {
        return sum;
    }
    let buckets = audit.get("buckets").and_then(Value::as_array).map(Vec::as_slice);
    let each = buckets.unwrap_or_default().iter();
    each.filter_map(|bucket| bucket.get(name).and_then(Value::as_u64)).sum()
}

/// The name of an item in a list.
fn name_of(item: &Value) -> Option<&str> {
    item.get("item")?.as_str()
}

fn audits_table(audits: &[(String, Value)]) -> Table {
    let mut shown = table(&["item", "law", "total", "available", "held", "sold", "written off"]);
    for (name, audit) in audits {
        let mut row = vec![name.clone(), if holds(audit) { "holds" } else { "BROKEN" }.to_owned()];
        row.extend(
            ["total", "available", "held", "sold", "written_off"]
                .iter()
                .map(|column| sum(audit, column).to_string()),
        );
        shown.add_row(row);
    }
    shown
}

fn verdict(verdicts: &[(String, bool)]) -> Result<(), Failure> {
    let broken: Vec<_> =
        verdicts.iter().filter(|(_, holds)| !holds).map(|(name, _)| name.as_str()).collect();
    if broken.is_empty() {
        return Ok(());
    }
    Err(Failure::Broken(format!("A LAW IS BROKEN for {}", broken.join(", "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_audit_that_does_not_say_that_it_holds_is_broken() {
        assert!(holds(&json!({"conserved": true})));
        assert!(!holds(&json!({"conserved": false})));
        assert!(!holds(&json!({"conserved": "true"})));
        assert!(!holds(&json!({})));
        let failure = verdict(&[("x".into(), false), ("y".into(), true)]).expect_err("broken");
        assert_eq!(failure.exit_code(), 1);
        assert!(failure.to_string().ends_with("for x"), "{failure}");
    }

    #[test]
    fn sums_are_taken_over_buckets_when_the_item_has_none_of_its_own() {
        let audit = json!({"total": 9, "buckets": [{"held": 1}, {"held": 2}]});
        assert_eq!((sum(&audit, "total"), sum(&audit, "held"), sum(&audit, "sold")), (9, 3, 0));
    }
}

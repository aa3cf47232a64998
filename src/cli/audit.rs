//! `holdfast audit`: is every unit accounted for?

use clap::Args;
use comfy_table::Table;
use serde_json::{Value, json};

use super::output::{Voice, list_in, members, rows, table};
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
    if voice.is_json() {
        voice.line(&audit.to_string());
    } else {
        voice.line(&page(&audit));
    }
    verdict(&[(item.to_owned(), holds(&audit))])
}

/// One item's audit for people: its sums, then its regions, its buckets and what moved between.
fn page(audit: &Value) -> String {
    let mut summary = audit.clone();
    if let Some(members) = summary.as_object_mut() {
        members.remove("buckets");
        members.remove("transfers");
    }
    let mut text = members(&summary).to_string();
    let list = |name: &str| audit.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
    let (buckets, transfers) = (list("buckets"), list("transfers"));
    let regions = by_region(&buckets);
    if regions.len() > 1 {
        let mut shown = table(&["region", "buckets", "available", "held", "sold", "written off"]);
        for (region, count, sums) in regions {
            let sums = sums.iter().map(u64::to_string);
            shown.add_row([region, count.to_string()].into_iter().chain(sums));
        }
        text.push_str(&format!("\n\nregions\n{shown}"));
    }
    let columns = ["id", "region", "shard", "received", "accepted", "available", "held", "due"];
    let columns: Vec<&str> =
        columns.into_iter().chain(["sold", "written_off", "sent", "holds"]).collect();
    text.push_str(&format!(
        "\n\nbuckets: received + accepted = available + held + sold + written off + sent\n{}",
        rows(&buckets, &columns)
    ));
    if !transfers.is_empty() {
        let shown = rows(&transfers, &["from", "to", "sent", "accepted"]);
        text.push_str(&format!(
            "\n\ntransfers: sent, and accepted; the rest is on its way\n{shown}"
        ));
    }
    text
}

/// Each region with the number of its buckets and their sums, in the order of its first bucket.
fn by_region(buckets: &[Value]) -> Vec<(String, usize, [u64; 4])> {
    let mut regions: Vec<(String, usize, [u64; 4])> = Vec::new();
    for bucket in buckets {
        let name = bucket.get("region").and_then(Value::as_str).unwrap_or_default();
        let of = |name: &str| bucket.get(name).and_then(Value::as_u64).unwrap_or(0);
        let units = ["available", "held", "sold", "written_off"].map(of);
        match regions.iter_mut().find(|(region, ..)| region == name) {
            Some((_, count, sums)) => {
                *count += 1;
                for (sum, more) in sums.iter_mut().zip(units) {
                    *sum = sum.saturating_add(more);
                }
            }
            None => regions.push((name.to_owned(), 1, units)),
        }
    }
    regions
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
        let plural = if audits.len() == 1 { "" } else { "s" };
        voice.say(&format!("{} item{plural}, every unit accounted for", audits.len()));
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
    fn an_audit_is_shown_as_its_sums_its_regions_a_row_a_bucket_and_what_moved() {
        let bucket = |id: u64, region: &str| {
            json!({"id": id, "shard": 0, "region": region, "available": 4, "held": 1, "sold": 2,
                "written_off": 0, "received": 7, "accepted": 0, "sent": 0, "due": 0, "holds": true})
        };
        let audit = json!({"item": "seat", "conserved": true, "total": 21,
            "buckets": [bucket(0, "eu"), bucket(1, "us"), bucket(2, "eu")],
            "transfers": [{"from": 0, "to": 1, "sent": 7, "accepted": 7}]});
        let text = page(&audit);
        let heads = ["seat", "regions", "buckets:", "transfers:"];
        let at: Vec<usize> = heads.iter().filter_map(|head| text.find(head)).collect();
        assert!(at.len() == 4 && at.is_sorted(), "{text}");
        assert!(text.lines().count() < 30, "{text}");
        let buckets = audit["buckets"].as_array().map(Vec::as_slice).unwrap_or_default();
        let eu = ("eu".to_owned(), 2, [8, 2, 4, 0]);
        assert_eq!(by_region(buckets), [eu, ("us".to_owned(), 1, [4, 1, 2, 0])]);
        let one = page(&json!({"item": "one", "buckets": [bucket(0, "default")], "transfers": []}));
        assert!(!one.contains("regions") && !one.contains("transfers"), "{one}");
    }

    #[test]
    fn sums_are_taken_over_buckets_when_the_item_has_none_of_its_own() {
        let audit = json!({"total": 9, "buckets": [{"held": 1}, {"held": 2}]});
        assert_eq!((sum(&audit, "total"), sum(&audit, "held"), sum(&audit, "sold")), (9, 3, 0));
    }
}

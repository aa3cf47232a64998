//! `holdfast item layout | transfer | regions`: where an item's stock lies, drawn as bars, and
//! moved by hand.

use std::time::Duration;

use clap::Subcommand;
use comfy_table::Table;
use http::Method;
use serde_json::{Map, Value, json};

use super::Failure;
use super::item::{path, quantity};
use super::output::{Voice, members, table};
use super::progress::spinner;
use crate::client::Client;
use crate::runtime::{now, sleep};

/// How often a change under way is looked at.
const FOLLOW_EVERY: Duration = Duration::from_millis(50);
/// How wide the longest bar is, in characters.
const BAR_WIDTH: u64 = 40;

#[derive(Debug, Subcommand)]
pub(super) enum LayoutVerb {
    /// Draw where an item's stock lies: sold, held and free in each bucket.
    #[command(after_help = "Examples:
  holdfast item layout ticket-1
  holdfast item layout ticket-1 --json | jq '.buckets[] | {id, shard, available}'")]
    Layout {
        /// The item's id.
        item: String,
    },
    /// Move stock from one bucket to another.
    #[command(after_help = "Examples:
  holdfast item transfer ticket-1                       # what ever moved
  holdfast item transfer ticket-1 --from 0 --to 2 --quantity 50
  holdfast item transfer ticket-1 --from 0 --to 2 --quantity 50 --key restock-7")]
    Transfer {
        /// The item's id.
        item: String,
        /// The bucket that gives.
        #[arg(long, requires_all = ["to", "quantity"])]
        from: Option<u16>,
        /// The bucket that gets.
        #[arg(long, requires = "from")]
        to: Option<u16>,
        /// Units.
        #[arg(long, value_name = "UNITS", value_parser = quantity, requires = "from")]
        quantity: Option<u64>,
        /// The idempotency key: a second run of the same line with the same key moves nothing.
        /// Made when absent.
        #[arg(long, requires = "from")]
        key: Option<String>,
    },
    /// Show an item's regions, or change them.
    ///
    /// A change names every region: one that exists keeps its buckets, and its floor when none is
    /// given; quota 0 closes it, a new name opens one.
    #[command(after_help = "Examples:
  holdfast item regions ticket-1
  holdfast item regions ticket-1 --set eu=70:10 --set us=30:15 --dry-run
  holdfast item regions ticket-1 --set eu=100 --set us=0 --set asia=0:0:2")]
    Regions {
        /// The item's id.
        item: String,
        /// A region from now on: quota, floor (as it has; 0 for a new one), buckets (as it has; 1
        /// for a new one).
        #[arg(long, value_name = "NAME=QUOTA[:FLOOR[:BUCKETS]]", value_parser = region)]
        set: Vec<(String, Value)>,
        /// Tell what would change, and change nothing.
        #[arg(long, requires = "set")]
        dry_run: bool,
        /// The item's revision as you read it; read first when absent.
        #[arg(long, value_name = "REVISION", requires = "set")]
        if_match: Option<u64>,
    },
}

/// `NAME=QUOTA[:FLOOR[:BUCKETS]]`.
pub(super) fn region(text: &str) -> Result<(String, Value), String> {
    let wrong = || "must look like eu=60, eu=60:10 or eu=60:10:2".to_owned();
    let (name, plan) =
        text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(wrong)?;
    let numbers: Vec<&str> = plan.split(':').collect();
    if numbers.len() > 3 {
        return Err(wrong());
    }
    let mut region = Map::new();
    for (field, number) in ["quota", "floor", "buckets"].iter().zip(numbers) {
        let number: u64 = number.parse().map_err(|_| wrong())?;
        region.insert((*field).to_owned(), json!(number));
    }
    Ok((name.to_owned(), Value::Object(region)))
}

impl LayoutVerb {
    pub(super) async fn run(self, client: &Client, voice: Voice) -> Result<(), Failure> {
        match self {
            LayoutVerb::Layout { item } => {
                let layout = read(client, &item).await?;
                voice.data(&layout, || picture(&layout));
                Ok(())
            }
            LayoutVerb::Transfer { item, from, to, quantity, key } => {
                let Some(((from, to), quantity)) = from.zip(to).zip(quantity) else {
                    let done = client.get(&path(&item, "/transfers")).await?.body;
                    voice.data(&done, || {
                        let list = done.get("transfers").and_then(Value::as_array);
                        let list = list.map(Vec::as_slice).unwrap_or_default();
                        super::output::rows(list, &["from", "to", "sent", "accepted"])
                    });
                    return Ok(());
                };
                let key = key.unwrap_or_else(|| client.fresh_key());
                let body = json!({"from": from, "to": to, "quantity": quantity});
                let (tail, within) = (path(&item, "/transfers"), client.deadline());
                let sent = client.send(Method::POST, &tail, Some(&body), Some(&key), within).await;
                let moved = sent?.body;
                voice.data(&moved, || members(&moved));
                voice.say(&format!(
                    "bucket {from} gave {quantity} to bucket {to} once under the key {key}; `sent` \
                     and `accepted` are all that ever went that way"
                ));
                Ok(())
            }
            LayoutVerb::Regions { item, set, dry_run, if_match } => {
                if set.is_empty() {
                    let layout = read(client, &item).await?;
                    let regions = layout.get("regions").cloned().unwrap_or_default();
                    voice.data(&regions, || regions_table(&regions));
                    return Ok(());
                }
                let told = change(client, &item, set, dry_run, if_match).await?;
                voice.data(&told, || if dry_run { members(&told) } else { picture(&told) });
                Ok(())
            }
        }
    }
}

async fn read(client: &Client, item: &str) -> Result<Value, Failure> {
    Ok(client.get(&path(item, "/layout")).await?.body)
}

/// Changes the regions of an item as it was read.
async fn change(
    client: &Client,
    item: &str,
    set: Vec<(String, Value)>,
    dry_run: bool,
    if_match: Option<u64>,
) -> Result<Value, Failure> {
    let layout = read(client, item).await?;
    let read = layout["revision"].as_u64();
    let revision = if_match
        .or(read)
        .ok_or_else(|| Failure::Usage("the node's answer has no revision".to_owned()))?;
    let regions: Map<String, Value> = set.into_iter().collect();
    let body = json!({ "regions": regions });
    let tail = if dry_run { "/layout?dry_run=true" } else { "/layout" };
    let path = path(item, tail);
    let sent = client.put_if_match(&path, &body, revision, client.deadline()).await?;
    if sent.status != 202 {
        return Ok(sent.body);
    }
    follow(client, item, &sent.body).await
}

/// Follows a change to its end, or until the command's time is up; shows how far it has come.
async fn follow(client: &Client, item: &str, layout: &Value) -> Result<Value, Failure> {
    let (number, version) = (units(layout, "number"), units(layout, "version"));
    let tail = path(item, &format!("/operations/{number}-{version}"));
    let shown = spinner("the shards of the item take the change over");
    let until = client.deadline();
    while now() < until {
        let operation = client.get(&tail).await?.body;
        let steps = list(&operation, "steps");
        let done = steps.iter().filter(|step| step["done"] == json!(true)).count();
        shown.set_message(format!("{done} of {} shards have the change", steps.len()));
        if operation["state"] == json!("done") {
            break;
        }
        sleep(FOLLOW_EVERY).await;
    }
    shown.finish_and_clear();
    read(client, item).await
}

fn units(value: &Value, name: &str) -> u64 {
    value.get(name).and_then(Value::as_u64).unwrap_or(0)
}

/// A bar of an object's sold (█), held (▓) and free (░) units; `longest` units fill the width.
fn bar(one: &Value, longest: u64) -> String {
    let mut text = String::new();
    let (mut upto, mut drawn) = (0_u64, 0_u64);
    for (name, mark) in [("sold", '█'), ("held", '▓'), ("available", '░')] {
        upto = upto.saturating_add(units(one, name));
        let wide = u128::from(upto) * u128::from(BAR_WIDTH) / u128::from(longest.max(1));
        let end = u64::try_from(wide).unwrap_or(BAR_WIDTH).min(BAR_WIDTH);
        // What is there is seen, however little it is.
        let end = if units(one, name) > 0 { end.max(drawn + 1).min(BAR_WIDTH) } else { end };
        while drawn < end {
            text.push(mark);
            drawn += 1;
        }
    }
    text
}

fn list<'a>(layout: &'a Value, name: &str) -> &'a [Value] {
    layout.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// The buckets as bars.
fn picture(layout: &Value) -> Table {
    let header = "█ sold  ▓ held  ░ free";
    let mut shown =
        table(&["bucket", "shard", "region", header, "sold", "held", "free", "on its way"]);
    let all = |one: &Value| {
        ["sold", "held", "available"].iter().map(|name| units(one, name)).sum::<u64>()
    };
    let buckets = list(layout, "buckets");
    let longest = buckets.iter().map(all).max().unwrap_or(0);
    for one in buckets {
        let region = one.get("region").and_then(Value::as_str).unwrap_or_default();
        shown.add_row(vec![
            units(one, "id").to_string(),
            units(one, "shard").to_string(),
            region.to_owned(),
            bar(one, longest),
            units(one, "sold").to_string(),
            units(one, "held").to_string(),
            units(one, "available").to_string(),
            units(one, "in_transit").to_string(),
        ]);
    }
    shown
}

fn regions_table(regions: &Value) -> Table {
    let columns = ["region", "quota", "floor", "buckets", "closed", "sold", "held", "free"];
    let mut shown = table(&columns);
    for (name, one) in regions.as_object().into_iter().flatten() {
        let closed = one.get("closed").and_then(Value::as_bool) == Some(true);
        shown.add_row(vec![
            name.clone(),
            units(one, "quota").to_string(),
            units(one, "floor").to_string(),
            units(one, "buckets").to_string(),
            if closed { "yes" } else { "no" }.to_owned(),
            units(one, "sold").to_string(),
            units(one, "held").to_string(),
            units(one, "available").to_string(),
        ]);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn region_on_the_command_line_has_a_quota_and_may_have_a_floor_and_buckets() {
        let read = |text| region(text).map(|(_, plan)| plan);
        assert_eq!(read("eu=60"), Ok(json!({"quota": 60})));
        assert_eq!(read("eu=60:10"), Ok(json!({"quota": 60, "floor": 10})));
        assert_eq!(read("eu=60:10:2"), Ok(json!({"quota": 60, "floor": 10, "buckets": 2})));
        for wrong in ["eu", "=60", "eu=", "eu=x", "eu=1:2:3:4", "eu=-1"] {
            assert!(region(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn bar_is_as_long_as_its_units_and_shows_the_last_one() {
        let full = json!({"sold": 20, "held": 10, "available": 10});
        assert_eq!(
            bar(&full, 40),
            format!("{}{}{}", "█".repeat(20), "▓".repeat(10), "░".repeat(10))
        );
        let one = json!({"sold": 0, "held": 1, "available": 0});
        assert_eq!(bar(&one, 1_000_000), "▓");
        assert_eq!(bar(&json!({}), 0), "");
        let huge = json!({"sold": u64::MAX, "held": 1, "available": 1});
        assert_eq!(bar(&huge, u64::MAX).chars().count(), 40);
    }

    #[test]
    fn picture_has_one_bar_a_bucket() {
        let bucket = |id: u64| json!({"id": id, "shard": 3, "region": "eu", "available": 5});
        let text = picture(&json!({"buckets": [bucket(0), bucket(1)]})).to_string();
        assert_eq!(text.matches(&"░".repeat(40)).count(), 2, "{text}");
    }
}

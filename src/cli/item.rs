//! `holdfast item …`: what is sold.

use clap::{ArgGroup, Args, Subcommand};
use http::Method;
use serde_json::{Map, Value, json};

use super::output::{list_in, members, rows};
use super::{Failure, Reach, layout};
use crate::client::{Client, path_segment};
use crate::ledger::QUANTITY_MAX;

/// Units on the command line: 1 … 2^53 − 1.
pub(super) fn quantity(text: &str) -> Result<u64, String> {
    match text.parse::<u64>() {
        Ok(units) if (1..=QUANTITY_MAX).contains(&units) => Ok(units),
        Ok(_) | Err(_) => Err(format!("must be a whole number from 1 to {QUANTITY_MAX}")),
    }
}

/// A total on the command line: 0 … 2^53 − 1.
fn total_units(text: &str) -> Result<u64, String> {
    match text.parse::<u64>() {
        Ok(units) if units <= QUANTITY_MAX => Ok(units),
        Ok(_) | Err(_) => Err(format!("must be a whole number from 0 to {QUANTITY_MAX}")),
    }
}

#[derive(Debug, Subcommand)]
pub(super) enum Item {
    /// Create an item.
    #[command(after_help = "Examples:
  holdfast item create ticket-1 --total 100
  holdfast item create ticket-1 --total 100 --limit-per-buyer 2 --ttl-ms 600000
  holdfast item create ticket-1 --total 10000 --buckets 4
  holdfast item create ticket-1 --total 100 --region eu=60:10:2 --region us=40:15:2")]
    Create {
        /// The item's id.
        item: String,
        /// Units that exist.
        #[arg(long, value_name = "UNITS", value_parser = total_units,
            allow_negative_numbers = true)]
        total: u64,
        /// Over how many shards the item is spread, each selling a share of it.
        #[arg(long, value_name = "N", conflicts_with = "region",
            value_parser = clap::value_parser!(u16).range(1..))]
        buckets: Option<u16>,
        /// A region: its quota, its floor (0) and over how many shards it is spread (1).
        #[arg(long, value_name = "NAME=QUOTA[:FLOOR[:BUCKETS]]", value_parser = layout::region)]
        region: Vec<(String, Value)>,
        #[command(flatten)]
        rules: Box<Rules>,
    },
    /// Change an item's rules; what is not named stays as it is.
    #[command(after_help = "Example:
  holdfast item set ticket-1 --limit-per-buyer 4")]
    Set {
        /// The item's id.
        item: String,
        #[command(flatten)]
        rules: Box<Rules>,
    },
    /// Show an item's definition and layout.
    #[command(after_help = "Example:
  holdfast item get ticket-1")]
    Get {
        /// The item's id.
        item: String,
    },
    /// List the tenant's items.
    #[command(after_help = "Example:
  holdfast item list --json | jq -r '.items[].item'")]
    List,
    /// Change how many units exist.
    #[command(after_help = "Examples:
  holdfast item adjust ticket-1 --delta 50 --reason 'second batch'
  holdfast item adjust ticket-1 --delta -10 --reason damaged
  holdfast item adjust ticket-1 --set-total 140 --if-match 7   # 7: from `item get`")]
    #[command(group(ArgGroup::new("change").required(true).args(["delta", "set_total"])))]
    Adjust {
        /// The item's id.
        item: String,
        /// Units more, or less.
        #[arg(long, value_name = "UNITS", allow_negative_numbers = true)]
        delta: Option<i64>,
        /// The new total, if the item is still as you read it (--if-match).
        #[arg(long, value_name = "UNITS", value_parser = total_units, requires = "if_match",
            allow_negative_numbers = true)]
        set_total: Option<u64>,
        /// The item's revision as you read it; only with --set-total, which needs it.
        #[arg(long, value_name = "REVISION", alias = "if-revision", conflicts_with = "delta")]
        if_match: Option<u64>,
        /// Why, for the record.
        #[arg(long, default_value = "operator")]
        reason: String,
        /// The idempotency key; made when absent.
        #[arg(long)]
        key: Option<String>,
    },
    /// Stop granting holds until `resume`.
    #[command(after_help = "Example:
  holdfast item pause ticket-1")]
    Pause(Named),
    /// Grant holds again after `pause`.
    #[command(after_help = "Example:
  holdfast item resume ticket-1")]
    Resume(Named),
    /// Take no more holds, for good; open ones can still be confirmed.
    ///
    /// Closing is final: a closed item cannot be opened again. To stop for a while, `pause` it.
    #[command(after_help = "Example:
  holdfast item close ticket-1")]
    Close(Named),
    /// Delete an item without open holds.
    #[command(after_help = "Example:
  holdfast item delete ticket-1")]
    Delete(Named),
    /// Show what is left.
    #[command(after_help = "Examples:
  holdfast item availability ticket-1
  holdfast item availability ticket-1 --linearizable --buckets --json")]
    Availability {
        /// The item's id.
        item: String,
        /// The truth at some moment of this call, instead of what the asked node knows.
        #[arg(long)]
        linearizable: bool,
        /// Per bucket.
        #[arg(long)]
        buckets: bool,
    },
    #[command(flatten)]
    Layout(layout::LayoutVerb),
    /// Show the conservation sums of one item; exits 1 when they do not hold.
    #[command(after_help = "Example:
  holdfast item audit ticket-1 && echo 'every unit is accounted for'")]
    Audit {
        /// The item's id.
        item: String,
    },
}

/// An item.
#[derive(Debug, Args)]
pub(super) struct Named {
    /// The item's id.
    item: String,
}

/// The rules of an item.
#[derive(Debug, Args)]
pub(super) struct Rules {
    /// Lifetime of a hold that names none, in ms.
    #[arg(long, value_name = "MS")]
    ttl_ms: Option<u64>,
    /// The longest lifetime that a hold may ask for, in ms.
    #[arg(long, value_name = "MS")]
    max_ttl_ms: Option<u64>,
    /// How many times a hold may be extended.
    #[arg(long, value_name = "N")]
    max_extends: Option<u32>,
    /// The longest time from placement to the last deadline, in ms.
    #[arg(long, value_name = "MS")]
    max_lifetime_ms: Option<u64>,
    /// Units that one buyer may have, held and sold.
    #[arg(long, value_name = "UNITS", value_parser = quantity)]
    limit_per_buyer: Option<u64>,
    /// No hold before this moment (RFC 3339).
    #[arg(long, value_name = "TIME")]
    opens_at: Option<String>,
    /// No hold from this moment on (RFC 3339).
    #[arg(long, value_name = "TIME")]
    closes_at: Option<String>,
    /// Words of your own, `name=value`; may be given often.
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    metadata: Vec<(String, String)>,
}

/// `name=value`.
pub(super) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        Some(_) | None => Err("must look like name=value".to_owned()),
    }
}

impl Rules {
    /// Writes the rules that were named into a definition.
    fn write_into(&self, definition: &mut Map<String, Value>) {
        let hold = [
            ("ttl_ms", self.ttl_ms.map(Value::from)),
            ("max_ttl_ms", self.max_ttl_ms.map(Value::from)),
            ("max_extends", self.max_extends.map(Value::from)),
            ("max_lifetime_ms", self.max_lifetime_ms.map(Value::from)),
        ];
        put_inner(definition, "hold", hold);
        let sale = [
            ("opens_at", self.opens_at.clone().map(Value::from)),
            ("closes_at", self.closes_at.clone().map(Value::from)),
        ];
        put_inner(definition, "sale", sale);
        let words = self.metadata.iter().map(|(name, value)| (name.as_str(), Some(json!(value))));
        put_inner(definition, "metadata", words);
        if let Some(limit) = self.limit_per_buyer {
            definition.insert("limit_per_buyer".to_owned(), json!(limit));
        }
    }
}

fn put_inner<'a>(
    outer: &mut Map<String, Value>,
    name: &str,
    pairs: impl IntoIterator<Item = (&'a str, Option<Value>)>,
) {
    let named: Vec<_> =
        pairs.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
    if named.is_empty() {
        return;
    }
    let inner = outer.entry(name).or_insert_with(|| json!({}));
    if !inner.is_object() {
        *inner = json!({});
    }
    inner.as_object_mut().expect("it was made an object above").extend(named);
}

/// The members of an item's definition that `PUT` takes.
const DEFINITION: [&str; 4] = ["hold", "limit_per_buyer", "sale", "metadata"];

impl Item {
    pub(super) async fn run(self, reach: Reach) -> Result<(), Failure> {
        let client = reach.client()?;
        let voice = reach.voice();
        let shown = match self {
            Item::Create { item, total, buckets, region, rules } => {
                let mut body = Map::new();
                body.insert("total".to_owned(), json!(total));
                if let Some(buckets) = buckets {
                    body.insert("buckets".to_owned(), json!(buckets));
                }
                if !region.is_empty() {
                    body.insert("regions".to_owned(), Value::Object(region.into_iter().collect()));
                }
                rules.write_into(&mut body);
                put(&client, &item, body).await?
            }
            Item::Set { item, rules } => set(&client, &item, &rules).await?,
            Item::Get { item } => client.get(&path(&item, "")).await?.body,
            Item::List => {
                let list = client.get("/v1/items").await?.body;
                voice.data(&list, || {
                    let columns = ["item", "state", "total", "limit_per_buyer", "revision"];
                    rows(list_in(&list), &columns)
                });
                return Ok(());
            }
            Item::Adjust { item, delta, set_total, if_match, reason, key } => {
                let change = Adjustment { delta, set_total, if_match, reason };
                change.send(&client, &item, key).await?
            }
            Item::Pause(named) => named.post(&client, "/pause").await?,
            Item::Resume(named) => named.post(&client, "/resume").await?,
            Item::Close(named) => named.post(&client, "/close").await?,
            Item::Delete(Named { item }) => {
                send(&client, Method::DELETE, &path(&item, ""), None).await?
            }
            Item::Availability { item, linearizable, buckets } => {
                let consistency = if linearizable { "linearizable" } else { "local" };
                let detail = if buckets { "&detail=buckets" } else { "" };
                let tail = format!("/availability?consistency={consistency}{detail}");
                client.get(&path(&item, &tail)).await?.body
            }
            Item::Layout(verb) => return verb.run(&client, voice).await,
            Item::Audit { item } => return super::audit::one(&client, voice, &item).await,
        };
        voice.data(&shown, || members(&shown));
        Ok(())
    }
}

struct Adjustment {
    delta: Option<i64>,
    set_total: Option<u64>,
    if_match: Option<u64>,
    reason: String,
}

impl Adjustment {
    async fn send(
        self,
        client: &Client,
        item: &str,
        key: Option<String>,
    ) -> Result<Value, Failure> {
        let mut body = Map::new();
        let named = [
            ("delta", self.delta.map(Value::from)),
            ("set_total", self.set_total.map(Value::from)),
            ("reason", Some(Value::from(self.reason))),
        ];
        body.extend(named.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        let key = key.unwrap_or_else(|| client.fresh_key());
        let path = path(item, "/adjustments");
        let body = Value::Object(body);
        let deadline = client.deadline();
        let answer = match self.if_match {
            None => client.send(Method::POST, &path, Some(&body), Some(&key), deadline).await?,
            Some(revision) => client.send_if_match(&path, &body, &key, revision, deadline).await?,
        };
        Ok(answer.body)
    }
}

impl Named {
    async fn post(self, client: &Client, tail: &str) -> Result<Value, Failure> {
        send(client, Method::POST, &path(&self.item, tail), None).await
    }
}

pub(super) fn path(item: &str, tail: &str) -> String {
    format!("/v1/items/{}{tail}", path_segment(item))
}

/// Sends a change that may be repeated without a key: it says how things are to be.
pub(super) async fn send(
    client: &Client,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Result<Value, Failure> {
    Ok(client.send(method, path, body, None, client.deadline()).await?.body)
}

async fn put(client: &Client, item: &str, body: Map<String, Value>) -> Result<Value, Failure> {
    send(client, Method::PUT, &path(item, ""), Some(&Value::Object(body))).await
}

/// Reads the definition, changes what was named, writes it back.
async fn set(client: &Client, item: &str, rules: &Rules) -> Result<Value, Failure> {
    let now = client.get(&path(item, "")).await?.body;
    let mut body = Map::new();
    for name in DEFINITION {
        if let Some(value) = now.get(name).filter(|value| !value.is_null()) {
            body.insert(name.to_owned(), value.clone());
        }
    }
    rules.write_into(&mut body);
    put(client, item, body).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_rule_leaves_its_neighbours_as_they_were() {
        let rules = Rules {
            ttl_ms: Some(5),
            max_ttl_ms: None,
            max_extends: None,
            max_lifetime_ms: None,
            limit_per_buyer: None,
            opens_at: None,
            closes_at: None,
            metadata: vec![("a".into(), "b".into())],
        };
        let mut body = Map::new();
        body.insert("hold".into(), json!({"ttl_ms": 1, "max_extends": 3}));
        rules.write_into(&mut body);
        let expected = json!({"hold": {"ttl_ms": 5, "max_extends": 3}, "metadata": {"a": "b"}});
        assert_eq!(Value::Object(body), expected);
    }
}

//! `holdfast hold …`: units set aside for a buyer.

use std::io::Read;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use http::Method;
use serde_json::Value;

use super::item::quantity;
use super::output::{Voice, list_in, members, rows};
use super::{Failure, Reach};
use crate::client::{
    Changed, Client, Hold, NewHold, Placing, Problem, Step, Voiding, path_segment,
};

#[derive(Debug, Subcommand)]
pub(super) enum HoldVerb {
    /// Set units aside for a buyer.
    #[command(after_help = "Examples:
  holdfast hold place ticket-1 --quantity 2 --buyer ann
  holdfast hold place ticket-1 --buyer ann --key 7c9e   # safe to repeat")]
    Place {
        /// The item's id.
        item: String,
        /// Units.
        #[arg(long, default_value = "1", value_parser = quantity, allow_negative_numbers = true)]
        quantity: u64,
        /// Who buys.
        #[arg(long)]
        buyer: Option<String>,
        /// The buyer's region.
        #[arg(long)]
        region: Option<String>,
        /// Lifetime in ms.
        #[arg(long, value_name = "MS")]
        ttl_ms: Option<u64>,
        /// Your own reference, a cart or an order.
        #[arg(long)]
        reference: Option<String>,
        #[command(flatten)]
        key: Key,
    },
    /// Show a hold.
    #[command(after_help = "Example:
  holdfast hold get hld_...")]
    Get {
        /// The hold's id.
        id: String,
        /// What the asked node knows, without asking the leader.
        #[arg(long)]
        local: bool,
    },
    /// Move a hold's deadline within its budget.
    #[command(after_help = "Example:
  holdfast hold extend hld_... --ttl-ms 300000")]
    Extend {
        /// The hold's id.
        id: String,
        /// Its lifetime from now on, in ms; the hold's own when absent.
        #[arg(long, value_name = "MS")]
        ttl_ms: Option<u64>,
        #[command(flatten)]
        key: Key,
    },
    /// Sell what is held.
    #[command(after_help = "Examples:
  holdfast hold confirm hld_...
  holdfast hold confirm hld_... --quantity 1        # sell one, give the rest back
  holdfast hold confirm hld_... --reacquire         # also when it has expired, if stock is left")]
    Confirm {
        /// The hold's id.
        id: String,
        /// Fewer units than held.
        #[arg(long, value_parser = quantity)]
        quantity: Option<u64>,
        /// Take stock again when the hold has expired.
        #[arg(long)]
        reacquire: bool,
        /// Your own reference.
        #[arg(long)]
        reference: Option<String>,
        #[command(flatten)]
        key: Key,
    },
    /// Give a hold's units back.
    #[command(after_help = "Example:
  holdfast hold release hld_... --reason 'cart emptied'")]
    Release {
        /// The hold's id.
        id: String,
        /// Why, for the record.
        #[arg(long)]
        reason: Option<String>,
        #[command(flatten)]
        key: Key,
    },
    /// Bring sold units back to stock.
    #[command(after_help = "Example:
  holdfast hold return hld_... --quantity 1")]
    Return {
        /// The hold's id.
        id: String,
        /// How many; all when absent.
        #[arg(long, value_parser = quantity)]
        quantity: Option<u64>,
        #[command(flatten)]
        key: Key,
    },
    /// List holds of an item.
    #[command(after_help = "Examples:
  holdfast hold list ticket-1 --state held
  holdfast hold list --item ticket-1 --buyer ann --json")]
    List {
        /// The item's id.
        #[arg(required_unless_present = "item_named")]
        item: Option<String>,
        /// The same by name.
        #[arg(long = "item", value_name = "ITEM", conflicts_with = "item")]
        item_named: Option<String>,
        /// Only this buyer's.
        #[arg(long)]
        buyer: Option<String>,
        /// Only in this state.
        #[arg(long, value_parser = ["held", "sold", "released", "expired", "returned"])]
        state: Option<String>,
        /// At most so many.
        #[arg(long, default_value_t = 100)]
        limit: u32,
        /// Go on where the last list ended.
        #[arg(long)]
        cursor: Option<String>,
    },
    /// Tell what became of a placing key.
    #[command(after_help = "Example:
  holdfast hold receipt 7c9e --item ticket-1 --buyer ann")]
    Receipt(Scope),
    /// Give up on a placing key for good.
    #[command(after_help = "Example:
  holdfast hold void 7c9e --item ticket-1 --buyer ann")]
    Void(Scope),
    /// Run up to 1,000 operations in one request, from a JSON file or stdin.
    #[command(after_help = "Example:
  echo '{\"operations\":[{\"op\":\"place\",\"key\":\"k1\",\"item\":\"ticket-1\",\"quantity\":1}]}' |
    holdfast hold batch -

Exits 1 when any operation was refused; each result says which.")]
    Batch {
        /// The file, or `-` for stdin.
        file: PathBuf,
    },
}

/// The idempotency key.
#[derive(Debug, Args)]
pub(super) struct Key {
    /// The idempotency key: the same key never acts twice. Made when absent.
    #[arg(long)]
    key: Option<String>,
}

impl Key {
    fn or_fresh(self, client: &Client) -> String {
        self.key.unwrap_or_else(|| client.fresh_key())
    }
}

/// A placing key and what it belongs to.
#[derive(Debug, Args)]
pub(super) struct Scope {
    /// The key.
    key: String,
    /// The item's id.
    #[arg(long)]
    item: String,
    /// The buyer that was named with it.
    #[arg(long)]
    buyer: Option<String>,
    /// The region that was named with it.
    #[arg(long)]
    region: Option<String>,
}

impl HoldVerb {
    pub(super) async fn run(self, reach: Reach) -> Result<(), Failure> {
        let client = reach.client()?;
        let voice = reach.voice();
        match self {
            HoldVerb::Place { item, quantity, buyer, region, ttl_ms, reference, key } => {
                let new = NewHold { quantity, buyer, region, ttl_ms, reference };
                let key = key.or_fresh(&client);
                let placing = client.place(&item, &new, &key, client.deadline()).await;
                let (hold, replayed) = placed(placing)?;
                show(voice, &hold);
                if replayed {
                    voice.say("(answered before: the same key, the same hold)");
                }
            }
            HoldVerb::Get { id, local } => {
                let tail = if local { "?consistency=local" } else { "" };
                let path = format!("/v1/holds/{}{tail}", path_segment(&id));
                let shown = client.get(&path).await?.body;
                voice.data(&shown, || members(&shown));
            }
            HoldVerb::Extend { id, ttl_ms, key } => {
                change(&client, voice, &id, Step::Extend { ttl_ms }, key).await?;
            }
            HoldVerb::Confirm { id, quantity, reacquire, reference, key } => {
                let step = Step::Confirm { quantity, reacquire, reference };
                change(&client, voice, &id, step, key).await?;
            }
            HoldVerb::Release { id, reason, key } => {
                change(&client, voice, &id, Step::Release { reason }, key).await?;
            }
            HoldVerb::Return { id, quantity, key } => {
                change(&client, voice, &id, Step::Return { quantity }, key).await?;
            }
            HoldVerb::List { item, item_named, buyer, state, limit, cursor } => {
                let query = query(&[
                    ("item", item.or(item_named)),
                    ("buyer", buyer),
                    ("state", state),
                    ("limit", Some(limit.to_string())),
                    ("cursor", cursor),
                ]);
                let shown = client.get(&format!("/v1/holds?{query}")).await?.body;
                let columns = ["id", "state", "quantity", "buyer", "region", "expires_at"];
                voice.data(&shown, || rows(list_in(&shown), &columns));
                if let Some(next) = shown.get("next_cursor").and_then(Value::as_str) {
                    voice.say(&format!("more: --cursor {next}"));
                }
            }
            HoldVerb::Receipt(scope) => {
                let query = query(&[
                    ("item", Some(scope.item)),
                    ("buyer", scope.buyer),
                    ("region", scope.region),
                ]);
                let path = format!("/v1/receipts/{}?{query}", path_segment(&scope.key));
                let shown = client.get(&path).await?.body;
                voice.data(&shown, || members(&shown));
            }
            HoldVerb::Void(scope) => void(&client, voice, &scope).await?,
            HoldVerb::Batch { file } => batch(&client, voice, &file).await?,
        }
        Ok(())
    }
}

/// What a placement means to a script.
pub(super) fn placed(placing: Placing) -> Result<(Hold, bool), Failure> {
    match placing {
        Placing::Placed { hold, replayed } => Ok((hold, replayed)),
        Placing::Refused(problem) => Err(Failure::Refused(problem)),
        Placing::GaveUp { last, .. } => {
            Err(Failure::Unavailable(format!("gave up; there is certainly no hold: {last}")))
        }
        Placing::Unresolved { key, last } => Err(Failure::unknown(&key, &last)),
        Placing::Invalid(words) => Err(Failure::Usage(words)),
    }
}

fn show(voice: Voice, hold: &Hold) {
    let shown = serde_json::to_value(hold).expect("a hold of strings and numbers is JSON");
    voice.data(&shown, || members(&shown));
}

async fn change(
    client: &Client,
    voice: Voice,
    id: &str,
    step: Step,
    key: Key,
) -> Result<(), Failure> {
    let key = key.or_fresh(client);
    match client.change(id, &step, &key, client.deadline()).await {
        Changed::Done { hold, replayed } => {
            show(voice, &hold);
            if replayed {
                voice.say("(done before: nothing was changed now)");
            } else if !moves(&step, hold.expires_in_ms) {
                voice.say("(the hold lasts longer than that already: its deadline stays)");
            }
            Ok(())
        }
        Changed::Refused(problem) => Err(Failure::Refused(problem)),
        Changed::Unavailable(last) => Err(Failure::Unavailable(last)),
        Changed::Unresolved { key, last } => Err(Failure::unknown(&key, &last)),
        Changed::Invalid(words) => Err(Failure::Usage(words)),
    }
}

/// Whether a step has moved the deadline, as far as it names one: an extension is never to an
/// earlier moment than the deadline that there is.
fn moves(step: &Step, expires_in_ms: u64) -> bool {
    match step {
        Step::Extend { ttl_ms: Some(ttl_ms) } => expires_in_ms <= *ttl_ms,
        Step::Extend { ttl_ms: None }
        | Step::Confirm { .. }
        | Step::Release { .. }
        | Step::Return { .. } => true,
    }
}

async fn void(client: &Client, voice: Voice, scope: &Scope) -> Result<(), Failure> {
    let (buyer, region) = (scope.buyer.as_deref(), scope.region.as_deref());
    match client.void(&scope.item, buyer, region, &scope.key, client.deadline()).await? {
        Voiding::Voided => {
            let shown = serde_json::json!({ "key": scope.key, "state": "voided" });
            voice.data(&shown, || members(&shown));
        }
        Voiding::Made(hold) => {
            show(voice, &hold);
            voice.say("the key had made this hold, which stands");
        }
    }
    Ok(())
}

/// The largest file that `hold batch` reads, in bytes.
const BATCH_BYTES_MAX: u64 = 16 << 20;

async fn batch(client: &Client, voice: Voice, file: &PathBuf) -> Result<(), Failure> {
    let mut text = String::new();
    let mut source: Box<dyn Read> = if file.as_os_str() == "-" {
        Box::new(std::io::stdin().lock())
    } else {
        let open = std::fs::File::open(file);
        Box::new(open.map_err(|e| Failure::Usage(format!("{}: {e}", file.display())))?)
    };
    source.by_ref().take(BATCH_BYTES_MAX).read_to_string(&mut text)?;
    let body: Value = serde_json::from_str(&text)
        .map_err(|e| Failure::Usage(format!("the operations are not JSON: {e}")))?;
    let answer = client
        .send(Method::POST, "/v1/holds:batch", Some(&body), None, client.deadline())
        .await?
        .body;
    let results = list_in(&answer);
    let columns = ["status", "hold.id", "hold.state", "problem.type", "problem.detail"];
    voice.data(&answer, || rows(results, &columns));
    let status = |result: &Value| result.get("status").and_then(Value::as_u64).unwrap_or(0);
    let failed = results.iter().filter(|result| status(result) >= 400).count();
    let unknown = results.iter().filter(|result| status(result) >= 500 && !stays(result)).count();
    let refused = failed - unknown;
    if unknown > 0 {
        return Err(Failure::Unavailable(format!(
            "{unknown} operations were not decided or are unknown: run the same file again"
        )));
    }
    if refused > 0 {
        return Err(Failure::Broken(format!("{refused} operations were refused")));
    }
    Ok(())
}

/// Whether a result with a status of the server's is a definite no all the same: an item that an
/// operator paused.
fn stays(result: &Value) -> bool {
    let members = result.get("problem").and_then(Value::as_object).cloned().unwrap_or_default();
    Problem::from_members(503, members, None).waits_for_an_operator()
}

fn query(pairs: &[(&str, Option<String>)]) -> String {
    let named = pairs.iter().filter_map(|(name, value)| {
        value.as_ref().map(|value| format!("{name}={}", path_segment(value)))
    });
    named.collect::<Vec<_>>().join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extension_that_ends_before_the_hold_does_is_told_to_have_moved_nothing() {
        let extend = |ttl_ms| Step::Extend { ttl_ms };
        assert!(!moves(&extend(Some(1_000)), 1_001));
        assert!(moves(&extend(Some(1_000)), 1_000) && moves(&extend(Some(1_000)), 990));
        assert!(moves(&extend(None), 1_001), "it named no moment");
    }

    #[test]
    fn giving_up_says_that_there_is_no_hold_and_unresolved_names_the_key() {
        let gave_up = Placing::GaveUp { key: "k".into(), last: "503".into() };
        let failure = placed(gave_up).expect_err("no hold");
        assert!(failure.to_string().contains("certainly no hold"), "{failure}");
        let unresolved = Placing::Unresolved { key: "k-9".into(), last: "504".into() };
        let failure = placed(unresolved).expect_err("unknown");
        assert!(failure.to_string().contains("--key k-9"), "{failure}");
        assert_eq!(failure.exit_code(), 3);
    }

    #[test]
    fn a_query_holds_only_what_was_named_and_encodes_it() {
        let pairs = [("item", Some("a&b".to_owned())), ("buyer", None)];
        assert_eq!(query(&pairs), "item=a%26b");
    }
}

//! The verdict after a run: do the laws hold, and is everything there that was acknowledged?
//!
//! Every unknown outcome is looked up by its key, so that for placements the books must match the
//! audit exactly: what is held and sold = what was acknowledged + what turned out to be made.

use serde_json::Value;

use super::super::Failure;
use super::super::audit;
use super::super::progress::bar;
use super::request::Requests;
use super::tally::Tally;
use super::{Duration, Mode};
use crate::client::{CallError, Client, path_segment};
use crate::runtime::sleep;

/// The most holds that are looked up one by one.
const LOOKUPS_MAX: usize = 2_000;
/// The most unknown keys that are looked up; with more, the books must only match within bounds.
const UNKNOWN_LOOKUPS_MAX: u64 = 20_000;
/// The most holds that are looked for in the item's list.
const LIST_MAX: u64 = 200_000;
/// How often a key that is still in flight is looked up.
const IN_FLIGHT_TRIES: u32 = 100;
/// The pause between such looks.
const IN_FLIGHT_PAUSE: Duration = Duration::from_millis(50);

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    pub(super) audit: Value,
    /// Units that stood before the run.
    pub(super) before: u64,
    /// Unknown keys that had made a hold.
    pub(super) unknown_made: u64,
    /// Unknown keys that were not looked up.
    pub(super) unknown_left: u64,
    /// Holds looked up one by one or in the list.
    pub(super) looked_up: u64,
    /// Everything that is wrong.
    pub(super) faults: Vec<String>,
}

impl Verdict {
    pub(super) fn good(&self) -> bool {
        self.faults.is_empty()
    }
}

/// Audits the item and compares it with the books.
pub(super) async fn reach(
    client: &Client,
    item: &str,
    mode: Mode,
    before: u64,
    requests: &Requests,
    tally: &Tally,
) -> Result<Verdict, Failure> {
    let mut verdict = Verdict { before, faults: tally.faults.clone(), ..Verdict::default() };
    verdict.look_up_unknown(client, item, requests, tally).await?;
    verdict.look_up_acknowledged(client, item, tally).await?;
    verdict.audit = audit::read(client, item).await?;
    verdict.compare(mode, tally);
    Ok(verdict)
}

impl Verdict {
    async fn look_up_unknown(
        &mut self,
        client: &Client,
        item: &str,
        requests: &Requests,
        tally: &Tally,
    ) -> Result<(), Failure> {
        let unknown = tally.unknown_keys();
        let shown = bar(unknown.min(UNKNOWN_LOOKUPS_MAX), "looking up unknown outcomes");
        self.unknown_left = unknown.saturating_sub(UNKNOWN_LOOKUPS_MAX);
        let numbers = tally.unknown.iter().flat_map(|keys| keys.first..keys.first + keys.count);
        for number in numbers.take(UNKNOWN_LOOKUPS_MAX as usize) {
            shown.inc(1);
            let region = requests.region(number).map(|region| format!("&region={region}"));
            let path = format!(
                "/v1/receipts/{}?item={}&buyer={}{}",
                requests.key(number),
                path_segment(item),
                requests.buyer(number),
                region.unwrap_or_default()
            );
            if made_a_hold(client, &path).await? {
                self.unknown_made += 1;
            }
        }
        shown.finish_and_clear();
        Ok(())
    }

    /// Looks for acknowledged holds: all of them in the item's list when it is short enough, else
    /// a sample, evenly spread over the run.
    async fn look_up_acknowledged(
        &mut self,
        client: &Client,
        item: &str,
        tally: &Tally,
    ) -> Result<(), Failure> {
        if tally.placed + self.before <= LIST_MAX {
            return self.look_in_list(client, item, tally).await;
        }
        let stride = tally.ids.len().div_ceil(LOOKUPS_MAX).max(1);
        let sample: Vec<_> = tally.ids.iter().step_by(stride).collect();
        let shown = bar(sample.len() as u64, "looking up acknowledged holds");
        for id in sample {
            self.looked_up += 1;
            shown.inc(1);
            match client.get(&format!("/v1/holds/{}", path_segment(id))).await {
                Ok(answer) => {
                    let state = answer.body.get("state").and_then(Value::as_str).unwrap_or("?");
                    if !matches!(state, "held" | "sold") {
                        self.faults.push(format!("the acknowledged hold {id} is {state}"));
                    }
                }
                Err(CallError::Refused(problem)) => {
                    self.faults.push(format!("MISSING: the acknowledged hold {id}: {problem}"));
                }
                Err(e) => return Err(e.into()),
            }
        }
        shown.finish_and_clear();
        Ok(())
    }

    async fn look_in_list(
        &mut self,
        client: &Client,
        item: &str,
        tally: &Tally,
    ) -> Result<(), Failure> {
        let shown = bar(tally.placed, "looking for acknowledged holds");
        let mut found = std::collections::BTreeSet::new();
        let mut cursor = String::new();
        loop {
            let path = format!("/v1/holds?item={}&limit=1000{cursor}", path_segment(item));
            let page = client.get(&path).await?.body;
            let holds = page.get("holds").and_then(Value::as_array).cloned().unwrap_or_default();
            for hold in &holds {
                let text = |name: &str| hold.get(name).and_then(Value::as_str).unwrap_or_default();
                if matches!(text("state"), "held" | "sold") {
                    found.insert(text("id").to_owned());
                }
            }
            shown.set_position(found.len() as u64);
            match page.get("next_cursor").and_then(Value::as_str) {
                Some(next) => cursor = format!("&cursor={}", path_segment(next)),
                None => break,
            }
        }
        shown.finish_and_clear();
        self.looked_up += tally.ids.len() as u64;
        let missing: Vec<_> = tally.ids.iter().filter(|id| !found.contains(*id)).collect();
        if let Some(first) = missing.first() {
            self.faults.push(format!(
                "MISSING: {} acknowledged holds are not in the list, {first} for one",
                missing.len()
            ));
        }
        Ok(())
    }

    fn compare(&mut self, mode: Mode, tally: &Tally) {
        if !audit::holds(&self.audit) {
            self.faults.push("A LAW IS BROKEN: the sums of the audit do not hold".into());
        }
        let (held, sold) = (audit::sum(&self.audit, "held"), audit::sum(&self.audit, "sold"));
        let total = audit::sum(&self.audit, "total");
        if held + sold > total {
            self.faults.push(format!("OVERSOLD: {held} held and {sold} sold of {total}"));
        }
        let made = tally.placed + self.unknown_made + self.before;
        match mode {
            Mode::SoldOut if tally.placed + self.unknown_made > 0 => {
                self.faults.push(format!("{} units of a sold-out item were granted", tally.placed));
            }
            Mode::Unary
            | Mode::Batch
            | Mode::SoldOut
            | Mode::Tail
            | Mode::Preload
            | Mode::Rolling
            | Mode::Restart => {
                self.within("held or sold", held + sold, made, made + self.unknown_left);
            }
            Mode::LifeCycle => {
                let unknown = tally.unknown_changes;
                self.within("sold", sold, tally.confirmed, tally.confirmed + unknown);
                // Held is what was placed and neither sold nor given back, as far as is known.
                let open = made.saturating_sub(tally.confirmed + tally.released);
                let least = open.saturating_sub(unknown);
                self.within("held", held, least, open + self.unknown_left);
            }
            Mode::Empty => {}
        }
    }

    fn within(&mut self, what: &str, found: u64, least: u64, most: u64) {
        if found < least {
            self.faults.push(format!(
                "MISSING: {least} units must be {what} by what was acknowledged, {found} are"
            ));
        }
        if found > most {
            self.faults.push(format!(
                "at most {most} units can be {what} by what was answered, {found} are"
            ));
        }
    }
}

/// Whether a key has made a hold; waits while it is in flight.
async fn made_a_hold(client: &Client, path: &str) -> Result<bool, Failure> {
    for _ in 0..IN_FLIGHT_TRIES {
        let receipt = client.get(path).await?.body;
        match receipt.get("state").and_then(Value::as_str) {
            Some("committed") => return Ok(true),
            Some("voided" | "not_found") => return Ok(false),
            Some("in_flight") => sleep(IN_FLIGHT_PAUSE).await,
            Some(_) | None => {
                return Err(Failure::Unavailable(format!("a receipt without a state: {receipt}")));
            }
        }
    }
    Err(Failure::Unavailable("a key stays in flight for ever".into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn compared(mode: Mode, tally: &Tally, held: u64, sold: u64, unknown_made: u64) -> Verdict {
        let audit = json!({"conserved": true, "total": 1_000, "held": held, "sold": sold});
        let mut verdict = Verdict { audit, unknown_made, ..Verdict::default() };
        verdict.compare(mode, tally);
        verdict
    }

    #[test]
    fn one_acknowledged_hold_that_is_not_there_fails_the_run() {
        let mut tally = Tally::new(0);
        tally.placed = 500;
        assert!(compared(Mode::Batch, &tally, 500, 0, 0).good());
        assert!(compared(Mode::Batch, &tally, 503, 0, 3).good());
        assert!(!compared(Mode::Batch, &tally, 499, 0, 0).good());
        assert!(!compared(Mode::Batch, &tally, 501, 0, 0).good());
    }

    #[test]
    fn a_grant_of_a_sold_out_item_fails_the_run() {
        let mut tally = Tally::new(0);
        assert!(compared(Mode::SoldOut, &tally, 0, 0, 0).good());
        tally.placed = 1;
        assert!(!compared(Mode::SoldOut, &tally, 1, 0, 0).good());
    }

    #[test]
    fn a_life_cycle_is_judged_by_its_sales_and_what_is_still_open() {
        let mut tally = Tally::new(0);
        (tally.placed, tally.confirmed, tally.released) = (30, 19, 9);
        assert!(compared(Mode::LifeCycle, &tally, 2, 19, 0).good());
        assert!(!compared(Mode::LifeCycle, &tally, 2, 18, 0).good());
        assert!(!compared(Mode::LifeCycle, &tally, 1, 19, 0).good());
        tally.unknown_changes = 1;
        assert!(compared(Mode::LifeCycle, &tally, 1, 20, 0).good());
    }

    #[test]
    fn a_broken_sum_fails_the_run_whatever_the_books_say() {
        let audit = json!({"conserved": false, "total": 10, "held": 0, "sold": 0});
        let mut verdict = Verdict { audit, ..Verdict::default() };
        verdict.compare(Mode::Unary, &Tally::new(0));
        assert!(!verdict.good());
    }
}

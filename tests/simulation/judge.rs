//! What every single answer must agree with: the order of the logs, ledger time, digests, sums.

use std::collections::{BTreeMap, BTreeSet};

use holdfast::api;
use holdfast::runtime::since_start_ms;
use parking_lot::Mutex;

use super::call::{Answer, Ask, Commit};

/// The wall clock at the beginning of every run: 2026-01-01T00:00:00Z.
const EPOCH_MS: u64 = 1_767_225_600_000;
/// Ledger time is slewed by at most one part in so many.
const SLEW_PART: u64 = 100;
/// How far apart clocks may be that agree, and some.
const SKEW_MS: u64 = 2_500;

/// Checks each answer against all others that were heard, whoever gave them.
#[derive(Default)]
pub(crate) struct Judge {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    broken: Vec<String>,
    several_wild: bool,
    /// (shard, index) → the leader id of that entry.
    leaders: BTreeMap<(u16, u64), (u64, u64)>,
    /// (shard, index) → ledger time after that entry.
    times: BTreeMap<(u16, u64), u64>,
    /// (shard, index) → digest after that entry.
    digests: BTreeMap<(u16, u64), u128>,
}

impl Judge {
    /// Notes that a law is broken.
    pub(crate) fn broken(&self, law: &str) {
        self.state.lock().broken.push(law.to_owned());
    }

    /// Tells whether a law was broken.
    pub(crate) fn is_broken(&self) -> bool {
        !self.state.lock().broken.is_empty()
    }

    /// Returns what was broken.
    pub(crate) fn verdict(&self) -> Vec<String> {
        self.state.lock().broken.clone()
    }

    /// Notes that more than one clock is wild: then no majority may be right.
    pub(crate) fn several_wild(&self) {
        self.state.lock().several_wild = true;
    }

    /// Returns the greatest ledger time that was heard of an index before this one.
    pub(crate) fn time_before(&self, shard: u16, index: u64) -> Option<u64> {
        let state = self.state.lock();
        state.times.range((shard, 0)..(shard, index)).next_back().map(|(_, time)| *time)
    }

    /// Returns the least ledger time that was heard of this index or a later one.
    pub(crate) fn time_from(&self, shard: u16, index: u64) -> Option<u64> {
        let state = self.state.lock();
        state.times.range((shard, index)..=(shard, u64::MAX)).next().map(|(_, time)| *time)
    }

    /// Returns how many leaderships wrote entries.
    pub(crate) fn leaderships(&self) -> usize {
        let state = self.state.lock();
        let all: BTreeSet<_> = state.leaders.iter().map(|((shard, _), id)| (*shard, *id)).collect();
        all.len()
    }

    /// Takes in that a replica of a node has applied an entry.
    ///
    /// # Errors
    ///
    /// The law that it breaks.
    pub(crate) fn see_entry(
        &self,
        node: u64,
        commit: Commit,
        time: u64,
        digest: u128,
    ) -> Result<(), String> {
        self.hear_commit(commit)?;
        self.hear_time(commit.shard, commit.index, time)?;
        self.hear_digest(node, commit.shard, commit.index, digest)
    }

    fn hear_digest(&self, node: u64, shard: u16, index: u64, digest: u128) -> Result<(), String> {
        let at = (shard, index);
        let known = *self.state.lock().digests.entry(at).or_insert(digest);
        if known != digest {
            return Err(format!(
                "node {node} has another digest at {at:?}: {known:032x}, {digest:032x}"
            ));
        }
        Ok(())
    }

    /// Takes an answer in.
    ///
    /// # Errors
    ///
    /// The law that it breaks.
    pub(crate) fn hear(&self, ask: &Ask, answer: &Answer) -> Result<(), String> {
        if answer.status == 500 {
            return Err(format!("{} {}: a 500: {}", ask.method, ask.path, answer.body));
        }
        if let Some(commit) = answer.commit {
            self.hear_commit(commit)?;
        }
        if answer.status != 200 {
            return Ok(());
        }
        let path = ask.path.split('?').next().unwrap_or_default();
        if path.ends_with("/audit") {
            self.hear_audit(answer)
        } else if path.ends_with("/availability") {
            self.hear_availability(answer)
        } else if path == "/admin/v1/digest" {
            self.hear_digests(answer)
        } else {
            Ok(())
        }
    }

    /// One leader id at each index, and none less than one before it.
    fn hear_commit(&self, commit: Commit) -> Result<(), String> {
        let mut state = self.state.lock();
        let at = (commit.shard, commit.index);
        let leader = (commit.term, commit.node);
        let known = *state.leaders.entry(at).or_insert(leader);
        if known != leader {
            return Err(format!("two leaders at {at:?}: {known:?} and {leader:?}"));
        }
        let before = state.leaders.range((commit.shard, 0)..at).next_back();
        if let Some((index, earlier)) = before.filter(|(_, earlier)| **earlier > leader) {
            return Err(format!("leader ids fall: {earlier:?} at {index:?}, {leader:?} at {at:?}"));
        }
        let after = state.leaders.range(at..=(commit.shard, u64::MAX)).nth(1);
        if let Some((index, later)) = after.filter(|(_, later)| **later < leader) {
            return Err(format!("leader ids fall: {leader:?} at {at:?}, {later:?} at {index:?}"));
        }
        Ok(())
    }

    /// Ledger time is one at each index and never goes back.
    fn hear_time(&self, shard: u16, index: u64, time: u64) -> Result<(), String> {
        let mut state = self.state.lock();
        let at = (shard, index);
        let passed = since_start_ms();
        let latest = EPOCH_MS + passed + passed / SLEW_PART + SKEW_MS;
        if !state.several_wild && time > latest {
            return Err(format!(
                "one wild clock moved ledger time to {time} at {at:?}, not {latest}"
            ));
        }
        let known = *state.times.entry(at).or_insert(time);
        if known != time {
            return Err(format!("two ledger times at {at:?}: {known} and {time}"));
        }
        let before = state.times.range((shard, 0)..at).next_back();
        if let Some((index, earlier)) = before.filter(|(_, earlier)| **earlier > time) {
            return Err(format!("ledger time goes back: {earlier} at {index:?}, {time} at {at:?}"));
        }
        let after = state.times.range(at..=(shard, u64::MAX)).nth(1);
        if let Some((index, later)) = after.filter(|(_, later)| **later < time) {
            return Err(format!("ledger time goes back: {time} at {at:?}, {later} at {index:?}"));
        }
        Ok(())
    }

    fn hear_audit(&self, answer: &Answer) -> Result<(), String> {
        let audit: api::Audit = parsed(answer)?;
        if !audit.conserved || !audit.broken.is_empty() {
            return Err(format!("the audit fails: {}", answer.body));
        }
        // Buckets of several shards are read one after the other: a unit that travelled meanwhile
        // is seen on its way, or in both and minus once on its way.
        let units = i128::from(audit.available + audit.held + audit.sold);
        let (total, in_transit) = (i128::from(audit.total), i128::from(audit.in_transit));
        let taken = i128::from(audit.held + audit.sold);
        if taken > total - in_transit.min(0) || units + in_transit != total {
            return Err(format!("the audit does not add up: {}", answer.body));
        }
        match answer.commit {
            Some(commit) => self.hear_time(commit.shard, commit.index, audit.as_of.0),
            None => Ok(()),
        }
    }

    fn hear_availability(&self, answer: &Answer) -> Result<(), String> {
        let stock: api::Availability = parsed(answer)?;
        // Of several shards it is no picture of one moment.
        let is_one_picture = answer.commit.is_some();
        if is_one_picture && stock.held + stock.sold > stock.total {
            return Err(format!("oversold: {}", answer.body));
        }
        let in_all = stock.available + stock.held + stock.sold + stock.in_transit;
        if is_one_picture && in_all != stock.total {
            return Err(format!("units are missing: {}", answer.body));
        }
        if stock.paused_reason.as_deref() == Some("invariant") {
            return Err(format!("the ledger found a broken law: {}", answer.body));
        }
        match answer.commit {
            Some(commit) => self.hear_time(commit.shard, commit.index, stock.as_of.0),
            None => Ok(()),
        }
    }

    /// Digests are equal at equal indices, whichever replica tells them.
    fn hear_digests(&self, answer: &Answer) -> Result<(), String> {
        let digests: api::Digests = parsed(answer)?;
        for one in digests.shards.iter().filter(|one| one.applied > 0) {
            let digest = u128::from_str_radix(&one.digest, 16)
                .map_err(|error| format!("{:?} is no digest: {error}", one.digest))?;
            self.hear_digest(digests.node, one.shard, one.applied, digest)?;
            self.hear_time(one.shard, one.applied, one.ledger_now.0)?;
        }
        Ok(())
    }
}

/// Reads an answer as what it must be.
pub(crate) fn parsed<T: serde::de::DeserializeOwned>(answer: &Answer) -> Result<T, String> {
    serde_json::from_value(answer.body.clone())
        .map_err(|error| format!("not the answer of this call: {error}: {}", answer.body))
}

//! Makes a failing run small: leaves out faults, decisions, clients and disturbances as long as the
//! same law is broken.
//!
//! Leaving something out changes when everything after it happens, so that most smaller runs are
//! other runs altogether. Each candidate is therefore tried under a few salts, too, which draw anew
//! what is drawn on the way.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::cut::{Cut, Keep, Unease};
use super::trace::Trace;
use super::verdict::Verdict;

/// What a candidate is judged by: [`super::run`], or a stand-in for it in a test.
pub(crate) type Try<'a> = &'a mut dyn FnMut(&Cut) -> Verdict;

/// Is told of each smaller run that fails the same way.
pub(crate) type Told<'a> = &'a mut dyn FnMut(&Cut, &Verdict);

/// Salts that a candidate is tried under, at most.
const SALTS: u64 = 3;

/// A failing run that gets smaller.
struct Shrinking<'a> {
    law: String,
    cut: Cut,
    verdict: Verdict,
    until: Instant,
    attempt: Try<'a>,
    told: Told<'a>,
}

/// Shrinks a seed's failing run for as long as `limit` allows. Returns the smallest cut found and
/// its verdict; the first run's when it is clean.
pub(crate) fn shrink(seed: u64, limit: Duration, told: Told<'_>) -> (Cut, Verdict) {
    shrink_by(&mut |cut| super::run(seed, cut, Trace::quiet()), Cut::default(), limit, told)
}

/// Shrinks whatever `attempt` runs.
pub(crate) fn shrink_by(
    attempt: Try<'_>,
    from: Cut,
    limit: Duration,
    told: Told<'_>,
) -> (Cut, Verdict) {
    let verdict = attempt(&from);
    let Some(law) = verdict.law() else { return (from, verdict) };
    let until = Instant::now() + limit;
    let mut shrinking = Shrinking { law, cut: from, verdict, until, attempt, told };
    shrinking.run();
    (shrinking.cut, shrinking.verdict)
}

impl Shrinking<'_> {
    fn run(&mut self) {
        // From the lists that were used to explicit ones: nothing changes yet.
        self.end_at(self.verdict.decisions);
        let mut smaller = true;
        while smaller && Instant::now() < self.until {
            smaller = false;
            smaller |= self.fewer(|cut| &mut cut.faults, self.verdict.fault_count());
            smaller |= self.fewer(|cut| &mut cut.decisions, self.verdict.decisions);
            smaller |= self.calmer();
            smaller |= self.fewer_clients();
        }
    }

    /// Tries a smaller run; keeps it when it fails in the same way.
    fn tries(&mut self, candidate: &Cut) -> bool {
        for salt in 0..SALTS {
            if Instant::now() > self.until {
                return false;
            }
            let salt = if salt == 0 { candidate.salt } else { salt };
            let cut = Cut { salt, ..candidate.clone() };
            let verdict = (self.attempt)(&cut);
            if verdict.law().as_ref() == Some(&self.law) {
                (self.told)(&cut, &verdict);
                (self.cut, self.verdict) = (cut, verdict);
                return true;
            }
        }
        false
    }

    /// Leaves out every decision after the last one that was made.
    fn end_at(&mut self, decisions: u32) {
        if self.cut.decisions.0.is_none() {
            let cut = Cut { decisions: Keep::only(0..decisions), ..self.cut.clone() };
            self.tries(&cut);
        }
    }

    /// Leaves out parts of a list, large ones first (delta debugging).
    fn fewer(&mut self, list: fn(&mut Cut) -> &mut Keep, count: u32) -> bool {
        let mut any = false;
        let mut parts = 2_usize;
        loop {
            let mut now = self.cut.clone();
            let kept: Vec<u32> = match &list(&mut now).0 {
                Some(kept) => kept.iter().copied().collect(),
                None => (0..count).collect(),
            };
            if kept.is_empty() || Instant::now() > self.until {
                return any;
            }
            let size = kept.len().div_ceil(parts);
            let smaller = kept.chunks(size).any(|left_out| {
                let left_out: BTreeSet<u32> = left_out.iter().copied().collect();
                let mut candidate = self.cut.clone();
                let rest = kept.iter().copied().filter(|number| !left_out.contains(number));
                *list(&mut candidate) = Keep::only(rest);
                self.tries(&candidate)
            });
            any |= smaller;
            if smaller {
                parts = parts.saturating_sub(1).max(2);
            } else if size == 1 {
                return any;
            } else {
                parts = (parts * 2).min(kept.len());
            }
        }
    }

    fn calmer(&mut self) -> bool {
        let left = Unease::ALL.into_iter().filter(|one| !self.cut.calm.contains(one));
        let left: Vec<Unease> = left.collect();
        let mut any = false;
        for one in left {
            let mut candidate = self.cut.clone();
            candidate.calm.insert(one);
            any |= self.tries(&candidate);
        }
        any
    }

    fn fewer_clients(&mut self) -> bool {
        let clients = self.cut.clients.unwrap_or(8);
        (1..clients).any(|fewer| {
            let candidate = Cut { clients: Some(fewer), ..self.cut.clone() };
            self.tries(&candidate)
        })
    }
}

//! What a shard's leader owes the other shards of its spread items, repeated until it is answered.
//!
//! The ledger knows what is owed (`Query::Duties`): stock that was sent and is not known to be
//! accepted, copies that are behind, deletions and lowerings under way. So a new leader goes on
//! where the old one died, and nothing here needs to be remembered: what is remembered only keeps
//! repetitions apart. No message says more than what is applied.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::lowering;
use crate::ledger::{
    AcceptStock, Answer, Command, CopyAnswered, CopyState, Delete, Duty, Found, ItemCursor,
    ItemRef, Query, Refusal, SettleStock, ShardId,
};
use crate::runtime::{self, Instant};
use crate::shard::{Outcome, Question, Router, ShardService};

/// How often a leader looks for what it owes.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Stock that was sent this long ago and is not known to be accepted is announced again: whoever
/// pulled it usually says so sooner.
const DELIVER_AFTER: Duration = Duration::from_millis(40);
/// An answer is waited for this long.
const ANSWER_MAX: Duration = Duration::from_millis(500);
/// A question without an answer is asked again after so long at first, and at most.
const AGAIN: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// Duties that one look takes on.
const DUTIES_A_LOOK: u32 = 256;
/// Items that one look passes in search of spread ones, on every replica.
const ITEMS_A_LOOK: usize = 512;
/// Once all were passed, such a look is taken only every so many times, and only when something was
/// applied: a new item's layout is mostly learned by whoever is asked for it.
const LOOKS_APART: u32 = 8;

/// Names a duty, to keep its repetitions apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Name {
    Deliver(AcceptName),
    Copy(ItemRef, ShardId),
    Item(ItemRef),
}

type AcceptName = (crate::ledger::BucketRef, crate::ledger::BucketId);

/// How a duty has gone so far.
#[derive(Debug, Clone, Copy)]
struct Tried {
    /// What was to be said: S of a pair, the revision of a copy.
    what: u64,
    next: Instant,
    pause: Duration,
}

/// One shard's deliveries on one node.
pub struct Delivery {
    shard: ShardService,
    router: Arc<Router>,
    stop: watch::Receiver<bool>,
    tried: BTreeMap<Name, Tried>,
    scan: Scan,
}

/// The search for spread items among those of the shard.
#[derive(Debug, Default)]
struct Scan {
    at: ItemCursor,
    looks: u32,
    /// Commands applied when the present pass began, and when the last whole one did.
    began: u64,
    passed: Option<u64>,
}

impl Scan {
    /// Passes some more items.
    fn go_on(&mut self, shard: &ShardService, router: &Router) {
        self.looks = self.looks.wrapping_add(1);
        let applied = shard.replica().volume().0;
        let is_at_rest = self.at == ItemCursor::default() && self.passed == Some(applied);
        if is_at_rest || (self.passed.is_some() && !self.looks.is_multiple_of(LOOKS_APART)) {
            return;
        }
        if self.at == ItemCursor::default() {
            self.began = applied;
        }
        self.at = router.learn_some(shard.shard(), self.at, ITEMS_A_LOOK);
        if self.at == ItemCursor::default() {
            self.passed = Some(self.began);
        }
    }
}

impl Delivery {
    /// Makes the task; [`Delivery::run`] must be called on the shard's runtime.
    pub fn new(shard: ShardService, router: Arc<Router>, stop: watch::Receiver<bool>) -> Delivery {
        Delivery { shard, router, stop, tried: BTreeMap::new(), scan: Scan::default() }
    }

    /// Delivers until the node stops.
    pub async fn run(mut self) {
        while !*self.stop.borrow() {
            self.scan.go_on(&self.shard, &self.router);
            if self.shard.leads() {
                self.look().await;
            } else {
                self.tried.clear();
            }
            runtime::sleep(LOOK_EVERY).await;
        }
    }

    async fn look(&mut self) {
        let query = Query::Duties { after: None, limit: DUTIES_A_LOOK };
        let found = self.shard.replica().read().ledger.query(&query);
        let Found::Duties(duties) = found else { return };
        if duties.is_empty() {
            self.tried.clear();
            return;
        }
        let now = runtime::now();
        let due: Vec<(Name, Duty)> = duties
            .into_iter()
            .filter_map(|duty| {
                let (name, what) = name_of(&duty);
                self.is_due(name, what, now).then_some((name, duty))
            })
            .collect();
        let attempts = due.into_iter().map(|(name, duty)| {
            let (router, shard) = (Arc::clone(&self.router), self.shard.shard());
            async move { (name, Box::pin(carry_out(router, shard, duty)).await) }
        });
        for (name, went_on) in futures_util::future::join_all(attempts).await {
            if went_on {
                self.tried.remove(&name);
            }
        }
        // What is not owed any more is forgotten in time.
        let now = runtime::now();
        self.tried.retain(|_, tried| now < tried.next + AGAIN.1 * 4);
    }

    /// Tells whether a duty is to be tried now, and notes that it is.
    fn is_due(&mut self, name: Name, what: u64, now: Instant) -> bool {
        let waits = matches!(name, Name::Deliver(_));
        let tried = self.tried.entry(name).or_insert(Tried {
            what,
            next: if waits { now + DELIVER_AFTER } else { now },
            pause: AGAIN.0,
        });
        if tried.what != what {
            let next = if waits { now + DELIVER_AFTER } else { now };
            *tried = Tried { what, next, pause: AGAIN.0 };
        }
        if now < tried.next {
            return false;
        }
        tried.next = now + tried.pause;
        tried.pause = (tried.pause * 2).min(AGAIN.1);
        true
    }
}

fn name_of(duty: &Duty) -> (Name, u64) {
    match duty {
        Duty::Deliver { accept, .. } => (Name::Deliver((accept.to, accept.from)), accept.sent),
        Duty::Configure { shard, configure } => {
            (Name::Copy(configure.item, *shard), configure.revision)
        }
        Duty::Erase { shard, erase } => (Name::Copy(erase.item, *shard), u64::MAX),
        Duty::Lower { item, earmarked, .. } => (Name::Item(*item), *earmarked),
        Duty::Delete { item, held, .. } => (Name::Item(*item), *held),
    }
}

/// Carries one duty on; tells whether it went on.
async fn carry_out(router: Arc<Router>, shard: ShardId, duty: Duty) -> bool {
    match duty {
        Duty::Deliver { accept, shard: to } => deliver(&router, shard, accept, to).await,
        Duty::Configure { shard: to, configure } => {
            let item = configure.item;
            let state = copy_state(&router, to, Command::Configure(configure)).await;
            note(&router, shard, item, to, state).await
        }
        Duty::Erase { shard: to, erase } => {
            let state = copy_state(&router, to, Command::EraseCopy(erase)).await;
            note(&router, shard, erase.item, to, state).await
        }
        Duty::Lower { item, begun, earmarked, needed } => {
            lowering::carry_on(&router, item, begun, earmarked, needed).await
        }
        Duty::Delete { item, name, held } => {
            end_deletion(&router, shard, Delete { name, item: item.item }, held).await
        }
    }
}

/// Asks another shard, or this one, and returns what the ledger answered.
async fn asked(router: &Arc<Router>, shard: ShardId, command: Command) -> Option<Answer> {
    let deadline = runtime::now() + ANSWER_MAX;
    let reply = router.ask_shard(shard, Question::from(command), deadline).await;
    match reply.outcome {
        Outcome::Answered(answer) => Some(answer),
        Outcome::Found(_)
        | Outcome::InFlight
        | Outcome::Paused(_)
        | Outcome::Overloaded
        | Outcome::Late
        | Outcome::Unknown
        | Outcome::Elsewhere { .. }
        | Outcome::NotServing(_) => None,
    }
}

/// Says again what a bucket has sent, and learns what was accepted.
async fn deliver(
    router: &Arc<Router>,
    donor: ShardId,
    accept: AcceptStock,
    to: Option<ShardId>,
) -> bool {
    let Some(to) = to.or_else(|| router.shard_of_bucket(accept.to)) else { return false };
    let answer = asked(router, to, Command::AcceptStock(accept)).await;
    let Some(Answer::Accepted { accepted }) = answer else { return false };
    let from = crate::ledger::BucketRef { bucket: accept.from, ..accept.to };
    let settle = SettleStock { from, to: accept.to.bucket, accepted };
    matches!(asked(router, donor, Command::SettleStock(settle)).await, Some(Answer::Settled))
}

async fn copy_state(router: &Arc<Router>, to: ShardId, command: Command) -> Option<CopyState> {
    match asked(router, to, command).await {
        Some(Answer::Copy(state)) => Some(state),
        Some(_) | None => None,
    }
}

/// Logs at home what a copy has answered.
async fn note(
    router: &Arc<Router>,
    home: ShardId,
    item: ItemRef,
    shard: ShardId,
    state: Option<CopyState>,
) -> bool {
    let Some(state) = state else { return false };
    let answered = Command::CopyAnswered(CopyAnswered { item, shard, state });
    matches!(asked(router, home, answered).await, Some(Answer::Noted))
}

/// Ends a deletion: it is carried out once every copy has answered the pause for it with nothing
/// held, and given up once something is known to be held.
async fn end_deletion(router: &Arc<Router>, home: ShardId, delete: Delete, held: u64) -> bool {
    let end = |command| asked(router, home, command);
    match end(Command::DeleteCommit(delete.clone())).await {
        Some(Answer::Retired { .. }) => true,
        // Every copy has answered: this is how it is.
        Some(Answer::Refused(Refusal::OpenHolds { .. })) if held > 0 => {
            matches!(end(Command::DeleteAbort(delete)).await, Some(Answer::Item { .. }))
        }
        Some(_) | None => false,
    }
}

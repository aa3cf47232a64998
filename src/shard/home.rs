//! The side of a shard where callers wait: one home for each thread that carries requests.
//!
//! A home remembers who waits for what, sends what one turn of its event loop produced for a shard
//! as *one* message, takes a commit's answers as one message, and keeps time: deadlines and the
//! watchdog run here, not on the thread they watch. A home that gives up on a question says what is
//! true of it: nothing was taken while it was queued, unknown once it was proposed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use super::ask::{Addressed, Ask, Delivery, Enquiry, GateLane, Stage, Stages, Ticket};
use super::desk::{Outcome, Reply};
use super::meter::{LaneLimits, Meter};
use crate::ledger::{PauseReason, ShardId};
use crate::peer::Link;
use crate::planted::{Fault, planted};
use crate::runtime::{self, Instant};

/// How often deadlines and quorums are looked at.
pub(crate) const WATCH_EVERY: Duration = Duration::from_millis(10);

/// Questions that one home may have waiting at once.
const OUTSTANDING_MAX: usize = 1 << 16;

/// Where a shard sends the answers for one home.
#[derive(Debug, Clone)]
pub(crate) struct Inbox {
    sender: mpsc::Sender<Vec<(Ticket, Reply)>>,
}

impl Inbox {
    pub(crate) fn is_same(&self, other: &Inbox) -> bool {
        self.sender.same_channel(&other.sender)
    }

    pub(crate) fn send(&self, answers: Vec<(Ticket, Reply)>) {
        // Each message answers a slot that is outstanding, and the channel holds as many messages
        // as there can be slots: it can only fail when the home's thread has gone.
        if self.sender.try_send(answers).is_err() {
            tracing::debug!("answers for a home that has gone are dropped");
        }
    }
}

/// The way into one shard on this node, as homes see it.
#[derive(Debug, Clone)]
pub(crate) struct Door {
    pub(crate) shard: ShardId,
    pub(crate) deliveries: mpsc::Sender<Delivery>,
    pub(crate) meter: Arc<Meter>,
    pub(crate) lanes: LaneLimits,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    waiting: Option<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    deadline: Instant,
    enquiry: Arc<Enquiry>,
    replies: Vec<Option<Reply>>,
    missing: usize,
    answer: oneshot::Sender<Vec<Reply>>,
}

#[derive(Debug, Default)]
struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
    outstanding: usize,
    /// No deadline of a waiting slot is earlier: until then there is nothing to look for.
    earliest: Option<Instant>,
}

/// Where the answers to an enquiry will come, in the order of its questions.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) enquiry: Arc<Enquiry>,
    pub(crate) answers: oneshot::Receiver<Vec<Reply>>,
}

#[derive(Debug, Default)]
struct Outbox {
    asks: BTreeMap<ShardId, Vec<Ask>>,
    flush_scheduled: bool,
}

/// One thread's home.
#[derive(Debug)]
pub(crate) struct Home {
    inbox: Inbox,
    slots: Mutex<Slots>,
    outbox: Mutex<Outbox>,
    doors: Vec<Door>,
    /// Connections of this thread to the other nodes, for forwarding.
    pub(crate) links: Mutex<BTreeMap<crate::ledger::NodeId, Link>>,
}

impl Home {
    /// Makes a home on this thread's runtime. `stale` tells whether a shard has no fresh quorum.
    pub(crate) fn open(
        doors: Vec<Door>,
        stale: Arc<dyn Fn(ShardId) -> bool + Send + Sync>,
    ) -> Arc<Home> {
        let (sender, answers) = mpsc::channel(OUTSTANDING_MAX);
        let home = Arc::new(Home {
            inbox: Inbox { sender },
            slots: Mutex::default(),
            outbox: Mutex::default(),
            doors,
            links: Mutex::default(),
        });
        runtime::spawn(Home::receive(Arc::downgrade(&home), answers));
        runtime::spawn(Home::watch(Arc::downgrade(&home), stale));
        home
    }

    /// Tells whether the runtime that its tasks lived on has ended: nobody hears it any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.inbox.sender.is_closed()
    }

    /// Puts questions on their way and returns where their answers will come, in order.
    ///
    /// # Errors
    ///
    /// `None` when too many wait here already: nothing was taken.
    pub(crate) fn send(
        self: &Arc<Home>,
        questions: Vec<Addressed>,
        deadline: Instant,
    ) -> Option<Sent> {
        let count = questions.len();
        let (stages, inbox, sent_at) = (Stages::new(count), self.inbox.clone(), runtime::now());
        let (answer, answers) = oneshot::channel();
        let mut slots = self.slots.lock();
        let slot = slots.reserve()?;
        let enquiry = Arc::new(Enquiry { questions, stages, inbox, slot, sent_at });
        let replies = std::iter::repeat_with(|| None).take(count).collect();
        let waiting =
            Waiting { deadline, enquiry: Arc::clone(&enquiry), replies, missing: count, answer };
        slots.fill(slot.0, waiting);
        drop(slots);
        let mut refused = Vec::new();
        let mut outbox = self.outbox.lock();
        let asks = |places: std::ops::Range<u32>| {
            places.map(|place| Ask { enquiry: Arc::clone(&enquiry), place })
        };
        // Questions of one shard and lane mostly stand together, and enter together.
        let mut place = 0;
        let kind = |asked: &Addressed| (asked.shard, GateLane::of(&asked.question));
        for run in enquiry.questions.chunk_by(|one, next| kind(one) == kind(next)) {
            let (shard, lane) = kind(&run[0]);
            let behind = place + u32::try_from(run.len()).unwrap_or(u32::MAX);
            let (entered, outcome) = match self.doors.get(usize::from(shard.0)) {
                Some(door) => {
                    (door.meter.enter(lane, run.len() as u64, door.lanes), Outcome::Overloaded)
                }
                None => (0, Outcome::Paused(PauseReason::Restoring)),
            };
            let first_out = place + u32::try_from(entered).unwrap_or(u32::MAX);
            if entered > 0 {
                outbox.asks.entry(shard).or_default().extend(asks(place..first_out));
            }
            let out = asks(first_out..behind);
            refused.extend(out.map(|ask| (ask.ticket(), reply(outcome.clone()))));
            place = behind;
        }
        if !outbox.flush_scheduled && !outbox.asks.is_empty() {
            outbox.flush_scheduled = true;
            runtime::spawn(Home::flush(Arc::clone(self)));
        }
        drop(outbox);
        if !refused.is_empty() {
            self.deliver(refused);
        }
        Some(Sent { enquiry, answers })
    }

    /// Lets the other tasks of this turn add theirs, then sends everything, one message a shard.
    async fn flush(self: Arc<Home>) {
        runtime::yield_now().await;
        let asks = {
            let mut outbox = self.outbox.lock();
            outbox.flush_scheduled = false;
            std::mem::take(&mut outbox.asks)
        };
        for (shard, asks) in asks {
            let door = &self.doors[usize::from(shard.0)];
            let sent = door.deliveries.try_send(Delivery { asks });
            if let Err(error) = sent {
                let outcome = match &error {
                    mpsc::error::TrySendError::Full(_) => Outcome::Overloaded,
                    mpsc::error::TrySendError::Closed(_) => Outcome::Paused(PauseReason::Restoring),
                };
                let asks = error.into_inner().asks;
                let shed = asks.into_iter().map(|ask| {
                    door.meter.leave(ask.lane(), 1);
                    (ask.ticket(), reply(outcome.clone()))
                });
                let shed: Vec<_> = shed.collect();
                self.deliver(shed);
            }
        }
    }

    fn deliver(&self, answers: Vec<(Ticket, Reply)>) {
        let mut slots = self.slots.lock();
        for (ticket, reply) in answers {
            slots.answer(ticket, reply);
        }
    }

    async fn receive(
        home: std::sync::Weak<Home>,
        mut answers: mpsc::Receiver<Vec<(Ticket, Reply)>>,
    ) {
        while let Some(message) = answers.recv().await {
            let Some(home) = home.upgrade() else { return };
            home.deliver(message);
        }
    }

    /// Every 10 ms: answers what is past its deadline, and wakes what waits for a shard that has
    /// lost its quorum.
    async fn watch(home: std::sync::Weak<Home>, stale: Arc<dyn Fn(ShardId) -> bool + Send + Sync>) {
        loop {
            runtime::sleep(WATCH_EVERY).await;
            let Some(home) = home.upgrade() else { return };
            let paused: Vec<bool> = home.doors.iter().map(|door| stale(door.shard)).collect();
            let mut slots = home.slots.lock();
            if slots.is_worth_a_look(runtime::now(), &paused) {
                slots.give_up(runtime::now(), &paused, &home.doors);
            }
        }
    }
}

/// An answer that no shard's state stands behind.
pub(crate) fn reply(outcome: Outcome) -> Reply {
    Reply { outcome, commit: None, leader: None }
}

impl Slots {
    /// Finds a slot for one who will wait; [`Slots::fill`] must follow.
    fn reserve(&mut self) -> Option<(u32, u32)> {
        if self.outstanding >= OUTSTANDING_MAX {
            return None;
        }
        let at = match self.free.pop() {
            Some(at) => at,
            None => {
                self.slots.push(Slot { generation: 0, waiting: None });
                u32::try_from(self.slots.len() - 1).ok()?
            }
        };
        Some((at, self.slots[at as usize].generation))
    }

    fn fill(&mut self, at: u32, waiting: Waiting) {
        self.outstanding += 1;
        let deadline = waiting.deadline;
        self.earliest = Some(self.earliest.map_or(deadline, |earliest| earliest.min(deadline)));
        self.slots[at as usize].waiting = Some(waiting);
    }

    fn answer(&mut self, ticket: Ticket, reply: Reply) {
        let Some(slot) = self.slots.get_mut(ticket.slot as usize) else { return };
        if slot.generation != ticket.generation {
            return;
        }
        let Some(waiting) = &mut slot.waiting else { return };
        let place = &mut waiting.replies[ticket.place as usize];
        if place.is_none() {
            *place = Some(reply);
            waiting.missing -= 1;
        }
        if waiting.missing == 0 {
            self.close(ticket.slot);
        }
    }

    fn close(&mut self, at: u32) {
        let slot = &mut self.slots[at as usize];
        let Some(waiting) = slot.waiting.take() else { return };
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(at);
        self.outstanding -= 1;
        let lost = || reply(Outcome::Unknown);
        let replies = waiting.replies.into_iter().map(|reply| reply.unwrap_or_else(lost));
        // A caller that has gone needs no answer; its write went on without it.
        waiting.answer.send(replies.collect()).ok();
    }

    /// Tells whether somebody may have to be told something: thousands may wait, and mostly nobody
    /// is late and no quorum is lost.
    fn is_worth_a_look(&self, now: Instant, paused: &[bool]) -> bool {
        let is_late = self.earliest.is_some_and(|earliest| now + WATCH_EVERY >= earliest);
        self.outstanding > 0 && (is_late || paused.contains(&true))
    }

    fn give_up(&mut self, now: Instant, paused: &[bool], doors: &[Door]) {
        let mut done = Vec::new();
        self.earliest = None;
        for (at, slot) in self.slots.iter_mut().enumerate() {
            let Some(waiting) = &mut slot.waiting else { continue };
            let late = now + WATCH_EVERY >= waiting.deadline;
            for place in 0..waiting.replies.len() {
                if waiting.replies[place].is_some() {
                    continue;
                }
                let shard = usize::from(waiting.enquiry.questions[place].shard.0);
                let stale = paused.get(shard).copied().unwrap_or(false);
                let outcome = give_up_one(&waiting.enquiry.stages, place, late, stale);
                let Some(outcome) = outcome else { continue };
                if let Some(door) = doors.get(shard) {
                    door.meter.gave_up(&outcome);
                }
                waiting.replies[place] = Some(reply(outcome));
                waiting.missing -= 1;
            }
            if waiting.missing == 0 {
                done.push(u32::try_from(at).unwrap_or(u32::MAX));
            } else if !late {
                let deadline = waiting.deadline;
                let earliest = self.earliest.map_or(deadline, |earliest| earliest.min(deadline));
                self.earliest = Some(earliest);
            } else {
                // Its answer is on its way; whoever was first says so at the next look.
                self.earliest = Some(now);
            }
        }
        for at in done {
            self.close(at);
        }
    }
}

/// What a home may say of a question that it gives up on; `None`: it waits on.
fn give_up_one(stages: &Stages, place: usize, late: bool, stale: bool) -> Option<Outcome> {
    match stages.at(place) {
        Stage::Queued if late || stale => {
            let mine = stages.advance(place, Stage::Queued, Stage::Abandoned);
            let outcome =
                if stale { Outcome::Paused(PauseReason::QuorumLost) } else { Outcome::Late };
            mine.then_some(outcome)
        }
        Stage::Joined if late => {
            let mine = stages.advance(place, Stage::Joined, Stage::Abandoned);
            mine.then_some(Outcome::Unknown)
        }
        Stage::Proposed if late => {
            let mine = stages.advance(place, Stage::Proposed, Stage::Abandoned);
            let no = planted(Fault::UnknownIsNo);
            mine.then_some(if no { Outcome::Late } else { Outcome::Unknown })
        }
        Stage::Queued | Stage::Joined | Stage::Proposed | Stage::Abandoned => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Command;
    use crate::shard::desk::{Consistency, Question};

    #[test]
    fn a_queued_question_that_is_given_up_can_never_be_proposed() {
        let stages = Stages::new(1);
        let outcome = give_up_one(&stages, 0, false, true);
        assert_eq!(outcome, Some(Outcome::Paused(PauseReason::QuorumLost)));
        assert!(!stages.advance(0, Stage::Queued, Stage::Proposed));
    }

    #[test]
    fn a_proposed_question_is_unknown_at_its_deadline_and_not_before() {
        let stages = Stages::new(1);
        assert!(stages.advance(0, Stage::Queued, Stage::Proposed));
        assert_eq!(give_up_one(&stages, 0, false, true), None);
        assert_eq!(give_up_one(&stages, 0, true, true), Some(Outcome::Unknown));
    }

    #[test]
    fn a_question_that_joined_another_is_unknown_at_its_deadline() {
        let stages = Stages::new(1);
        assert!(stages.advance(0, Stage::Queued, Stage::Joined));
        assert_eq!(give_up_one(&stages, 0, false, true), None);
        assert_eq!(give_up_one(&stages, 0, true, false), Some(Outcome::Unknown));
    }

    #[test]
    fn thousands_of_waiting_slots_cost_nothing_until_one_is_late_or_a_quorum_is_lost() {
        crate::raft::trial::run(async {
            let now = runtime::now();
            let mut slots = Slots::default();
            assert!(!slots.is_worth_a_look(now, &[true]), "nobody waits");
            for after in [50, 30, 40] {
                let (answer, _) = oneshot::channel();
                let question = Question::from(Command::Advance);
                let consistency = Consistency::Leader;
                let slot = slots.reserve().expect("a slot");
                let enquiry = Arc::new(Enquiry {
                    questions: vec![Addressed { shard: ShardId(0), question, consistency }],
                    stages: Stages::new(1),
                    inbox: Inbox { sender: mpsc::channel(1).0 },
                    slot,
                    sent_at: now,
                });
                let deadline = now + Duration::from_secs(after);
                let waiting =
                    Waiting { deadline, enquiry, replies: vec![None], missing: 1, answer };
                slots.fill(slot.0, waiting);
            }
            assert!(!slots.is_worth_a_look(now, &[false]));
            assert!(slots.is_worth_a_look(now, &[true]));
            let late = now + Duration::from_secs(30);
            assert!(slots.is_worth_a_look(late, &[false]));
            slots.give_up(late, &[false], &[]);
            assert_eq!(slots.outstanding, 2, "one was told");
            assert!(!slots.is_worth_a_look(late, &[false]), "the next is due in ten seconds");
        });
    }
}

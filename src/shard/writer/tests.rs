//! The path of a reservation through gate and batcher, step by step: the group is real, the writer
//! is driven by hand, so that every interleaving is a line of a test.

// A test that names one answer panics on every other one, known or to come.
#![allow(clippy::wildcard_enum_match_arm)]

mod keys;
mod queue;
mod quorum;

use tokio::sync::oneshot;

use super::*;
use crate::ledger::{
    Adjust, Answer, Change, Command, Found, HoldId, KeyScope, Place as PlaceCommand, Query,
    Receipt, Refusal, Release, SetMode,
};
use crate::raft::trial::{Alone, SHARD, define, item, run, until};
use crate::shard::ask::Addressed;
use crate::shard::desk::{Consistency, Question, Reply};
use crate::shard::fence::Bar;
use crate::shard::home::Home;
use crate::shard::opening::{ShardLimits, ShardService, assemble};
use crate::storage::LogPosition;

const LONG: Duration = Duration::from_secs(60);

fn limits() -> ShardLimits {
    ShardLimits {
        pause_after: LONG,
        entry_bytes_max: 64 << 10,
        entries_in_flight_max: 2,
        queue_max: 64,
        finish_lane: 16,
        queue_age_max: LONG,
        park_max: 8,
        lease: Duration::from_millis(400),
        heartbeat: Duration::from_millis(50),
    }
}

type Answers = oneshot::Receiver<Vec<Reply>>;

/// A shard whose writer and whose home take their steps when a test says so.
struct Bench {
    alone: Alone,
    service: ShardService,
    writer: Writer,
    deliveries: mpsc::Receiver<Delivery>,
    proposals: FuturesUnordered<Decision>,
    home: Arc<Home>,
}

impl Bench {
    /// Opens a shard with one item of so many units.
    async fn open(limits: ShardLimits, total: u64) -> Bench {
        let alone = Alone::start().await;
        alone.apply(&[define(item(1), total)]).await;
        let (service, writer, deliveries) =
            assemble(alone.group.clone(), limits, Arc::new(|| None), Default::default());
        let home = Home::open(vec![service.place.door.clone()], Arc::new(|_| false));
        let proposals = FuturesUnordered::new();
        Bench { alone, service, writer, deliveries, proposals, home }
    }

    fn send(&self, questions: Vec<Question>, time: Duration) -> Answers {
        let addressed =
            |question| Addressed { shard: SHARD, question, consistency: Consistency::Leader };
        let questions = questions.into_iter().map(addressed).collect();
        self.home.send(questions, runtime::now() + time).expect("a slot").answers
    }

    /// Sends a command and lets the gate judge it.
    async fn take(&mut self, command: Command) -> Answers {
        self.take_for(command, LONG).await
    }

    async fn take_for(&mut self, command: Command, time: Duration) -> Answers {
        let answers = self.send(vec![Question::from(command)], time);
        self.deliver().await;
        answers
    }

    async fn deliver(&mut self) {
        let delivery = runtime::timeout(LONG, self.deliveries.recv()).await.expect("in time");
        self.writer.receive(delivery.expect("the home is there"));
        self.writer.gate.send_home();
    }

    /// Gathers an entry and keeps it from Raft.
    fn gather(&mut self) -> Gathered {
        self.writer.gather().expect("something is queued")
    }

    async fn work(&mut self) {
        self.writer.work(&mut self.proposals).await;
    }

    /// Proposes what is queued, for real, and takes in what became of it.
    async fn commit(&mut self) {
        self.work().await;
        while !self.proposals.is_empty() {
            let next = runtime::timeout(LONG, self.proposals.next()).await.expect("in time");
            let (ticket, result) = next.expect("one is under way");
            self.writer.decided(ticket, result);
            self.work().await;
        }
    }

    /// Gathers an entry whose fate does not come back.
    fn lose_sight(&mut self) {
        let ticket = self.gather().ticket;
        self.writer.decided(ticket, Err(ProposeError::Unknown("gone".to_owned())));
    }

    /// Makes it so that every entry in flight is of an older leadership than what is applied.
    fn pass_leadership(&mut self) {
        for entry in &mut self.writer.flying {
            entry.leader.term = 0;
        }
    }

    fn queued(&self) -> u64 {
        self.service.place.meter.traffic().queued
    }

    fn is_idle(&self) -> bool {
        let gate = &self.writer.gate;
        gate.flights.len() == 0 && gate.parked.is_empty() && self.queued() == 0
    }
}

async fn one(answers: Answers) -> Outcome {
    let replies = runtime::timeout(Duration::from_secs(10), answers).await.expect("in time");
    let mut replies = replies.expect("the home answers");
    assert_eq!(replies.len(), 1);
    replies.pop().expect("one reply").outcome
}

fn place_of(key: &str, quantity: u64) -> PlaceCommand {
    PlaceCommand {
        name: item(1),
        region: None,
        buyer: None,
        key: key.to_owned(),
        quantity,
        ttl_ms: None,
        reference: None,
    }
}

fn place(key: &str, quantity: u64) -> Command {
    Command::Place(place_of(key, quantity))
}

/// A hold's id, and whether it was there before.
fn held(outcome: Outcome) -> (HoldId, bool) {
    match outcome {
        Outcome::Answered(Answer::Placed(placed)) => (placed.id, false),
        Outcome::Answered(Answer::Hold { hold, replayed }) => (hold.id, replayed),
        other => panic!("no hold: {other:?}"),
    }
}

fn is_sold_out(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Answered(Answer::Refused(Refusal::SoldOut { .. })))
}

fn release(hold: HoldId, key: &str) -> Command {
    let (tenant, key) = ("t".to_owned(), key.to_owned());
    Command::Release(Release { hold, tenant, key, reason: None })
}

fn lower(key: &str, units: u64) -> Command {
    let change = Change::Lower(units);
    Command::Adjust(Adjust { name: item(1), key: key.to_owned(), change, reason: String::new() })
}

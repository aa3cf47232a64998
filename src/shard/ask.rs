//! One question on its way through a shard, and the stage it has reached.
//!
//! A question is *queued* until its shard proposes it, and from then on *proposed*: its failure is
//! unknown. Two sides move the stage, the shard's single writer and the home that waits for the
//! answer, so each move is one compare-and-swap: a home that gives up on a queued question knows
//! for certain that it will never be proposed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::desk::{Consistency, Question, Reply};
use super::home::Inbox;
use crate::ledger::{Query, ShardId};
use crate::raft::PackedCommand;
use crate::runtime::Instant;

/// How far a question has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Stage {
    /// Nothing was proposed.
    Queued = 0,
    /// It waits for the outcome of another question with its key, which was proposed.
    Joined = 1,
    /// It is part of an entry that was handed to Raft.
    Proposed = 2,
    /// Its home gave up on it and has answered.
    Abandoned = 3,
}

/// The stages of the questions of one enquiry.
#[derive(Debug)]
pub(crate) struct Stages(Box<[AtomicU8]>);

impl Stages {
    pub(crate) fn new(count: usize) -> Stages {
        Stages((0..count).map(|_| AtomicU8::new(Stage::Queued as u8)).collect())
    }

    pub(crate) fn at(&self, place: usize) -> Stage {
        match self.0[place].load(Ordering::Acquire) {
            0 => Stage::Queued,
            1 => Stage::Joined,
            2 => Stage::Proposed,
            _ => Stage::Abandoned,
        }
    }

    /// Moves from one stage to another, or says `false` when the other side was first.
    pub(crate) fn advance(&self, place: usize, from: Stage, to: Stage) -> bool {
        let cell = &self.0[place];
        cell.compare_exchange(from as u8, to as u8, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// Where an answer goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket {
    /// The slot in its home.
    pub(crate) slot: u32,
    /// The slot's generation: an answer that comes after the slot was given to another is dropped.
    pub(crate) generation: u32,
    /// The question's place within the slot.
    pub(crate) place: u32,
}

/// A question and the shard it goes to.
#[derive(Debug, Clone)]
pub(crate) struct Addressed {
    pub(crate) shard: ShardId,
    pub(crate) question: Question,
    pub(crate) consistency: Consistency,
}

impl Addressed {
    /// Tells whether only the shard's thread can answer it.
    pub(crate) fn needs_the_shard(&self) -> bool {
        let by_state = matches!(self.question, Question::Query { ref query, .. }
            if !matches!(query, Query::Receipt(_)));
        self.consistency != Consistency::Linearizable && !by_state
    }
}

/// What one caller asked at once. Its questions stay here, wherever their asks go, so that a caller
/// who was told that nothing was taken can ask elsewhere.
#[derive(Debug)]
pub(crate) struct Enquiry {
    pub(crate) questions: Vec<Addressed>,
    pub(crate) stages: Stages,
    pub(crate) inbox: Inbox,
    /// The slot in its home, and the slot's generation.
    pub(crate) slot: (u32, u32),
    /// When its home sent it.
    pub(crate) sent_at: Instant,
}

/// One question on its way.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) enquiry: Arc<Enquiry>,
    /// The question's place within the enquiry.
    pub(crate) place: u32,
}

impl Ask {
    fn at(&self) -> usize {
        self.place as usize
    }

    pub(crate) fn question(&self) -> &Question {
        &self.enquiry.questions[self.at()].question
    }

    /// The command, if it is not a query.
    pub(crate) fn asked(&self) -> Option<&PackedCommand> {
        match self.question() {
            Question::Command(command) => Some(command),
            Question::Query { .. } => None,
        }
    }

    pub(crate) fn consistency(&self) -> Consistency {
        self.enquiry.questions[self.at()].consistency
    }

    /// Returns the command that was admitted.
    ///
    /// # Panics
    ///
    /// When the question is a query: those are answered and never admitted.
    pub(crate) fn command(&self) -> &PackedCommand {
        match self.question() {
            Question::Command(command) => command,
            Question::Query { .. } => unreachable!("only commands are admitted"),
        }
    }

    pub(crate) fn lane(&self) -> GateLane {
        GateLane::of(self.question())
    }

    pub(crate) fn sent_at(&self) -> Instant {
        self.enquiry.sent_at
    }

    pub(crate) fn ticket(&self) -> Ticket {
        let (slot, generation) = self.enquiry.slot;
        Ticket { slot, generation, place: self.place }
    }

    /// Tells whether its home still waits.
    pub(crate) fn is_wanted(&self) -> bool {
        self.enquiry.stages.at(self.at()) != Stage::Abandoned
    }

    fn advance(&self, from: Stage, to: Stage) -> bool {
        self.enquiry.stages.advance(self.at(), from, to)
    }

    /// Marks it as proposed; `false`: its home has given up, it must not be.
    pub(crate) fn propose(&self) -> bool {
        self.advance(Stage::Queued, Stage::Proposed)
    }

    /// Marks it as waiting for another's outcome; `false`: its home has given up.
    pub(crate) fn join(&self) -> bool {
        self.advance(Stage::Queued, Stage::Joined)
    }

    /// Marks it as queued again, since what it waited for is decided; `false`: its home has given
    /// up.
    pub(crate) fn requeue(&self) -> bool {
        self.enquiry.stages.at(self.at()) == Stage::Queued
            || self.advance(Stage::Joined, Stage::Queued)
            || self.advance(Stage::Proposed, Stage::Queued)
    }
}

/// What one turn of a home brought for one shard.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) asks: Vec<Ask>,
}

/// Answers on their way home, grouped so that each home gets one message for all of them.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    answers: Vec<(Inbox, Vec<(Ticket, Reply)>)>,
}

impl Outgoing {
    pub(crate) fn push(&mut self, ask: &Ask, reply: Reply) {
        let (ticket, inbox) = (ask.ticket(), &ask.enquiry.inbox);
        match self.answers.iter_mut().find(|(home, _)| home.is_same(inbox)) {
            Some((_, answers)) => answers.push((ticket, reply)),
            None => self.answers.push((inbox.clone(), vec![(ticket, reply)])),
        }
    }

    /// Sends everything.
    pub(crate) fn flush(&mut self) {
        for (home, answers) in self.answers.drain(..) {
            home.send(answers);
        }
    }
}

/// Which lane of the gate a question belongs to: those that end or keep a hold have one that places
/// can never fill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GateLane {
    Place,
    Finish,
}

/// A value for each lane.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Lanes<T> {
    places: T,
    finishes: T,
}

impl<T> Lanes<T> {
    pub(crate) fn of_mut(&mut self, lane: GateLane) -> &mut T {
        match lane {
            GateLane::Place => &mut self.places,
            GateLane::Finish => &mut self.finishes,
        }
    }
}

impl GateLane {
    pub(crate) fn of(question: &Question) -> GateLane {
        match question {
            Question::Command(command) if command.is_place() => GateLane::Place,
            Question::Command(_) | Question::Query { .. } => GateLane::Finish,
        }
    }
}

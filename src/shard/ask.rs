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
use crate::ledger::ShardId;
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

/// The stages of the questions of one slot.
#[derive(Debug, Clone)]
pub(crate) struct Stages(Arc<[AtomicU8]>);

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

/// One question on its way.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) question: Question,
    pub(crate) consistency: Consistency,
    pub(crate) stages: Stages,
    pub(crate) ticket: Ticket,
    pub(crate) inbox: Inbox,
    /// When its home sent it.
    pub(crate) sent_at: Instant,
}

impl Ask {
    fn place(&self) -> usize {
        self.ticket.place as usize
    }

    /// Tells whether its home still waits.
    pub(crate) fn is_wanted(&self) -> bool {
        self.stages.at(self.place()) != Stage::Abandoned
    }

    /// Marks it as proposed; `false`: its home has given up, it must not be.
    pub(crate) fn propose(&self) -> bool {
        self.stages.advance(self.place(), Stage::Queued, Stage::Proposed)
    }

    /// Marks it as waiting for another's outcome; `false`: its home has given up.
    pub(crate) fn join(&self) -> bool {
        self.stages.advance(self.place(), Stage::Queued, Stage::Joined)
    }

    /// Marks it as queued again, since what it waited for is decided; `false`: its home has given
    /// up.
    pub(crate) fn requeue(&self) -> bool {
        let place = self.place();
        self.stages.at(place) == Stage::Queued
            || self.stages.advance(place, Stage::Joined, Stage::Queued)
            || self.stages.advance(place, Stage::Proposed, Stage::Queued)
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
    pub(crate) fn push(&mut self, ask: Ask, reply: Reply) {
        let Ask { inbox, ticket, .. } = ask;
        match self.answers.iter_mut().find(|(home, _)| home.is_same(&inbox)) {
            Some((_, answers)) => answers.push((ticket, reply)),
            None => self.answers.push((inbox, vec![(ticket, reply)])),
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

impl GateLane {
    pub(crate) fn of(question: &Question) -> GateLane {
        use crate::ledger::Command;
        match question {
            Question::Query { .. } => GateLane::Finish,
            Question::Command(command) => match command {
                Command::Place(_) => GateLane::Place,
                Command::Define(_)
                | Command::Adjust(_)
                | Command::SetMode(_)
                | Command::Retire(_)
                | Command::Extend(_)
                | Command::Confirm(_)
                | Command::Release(_)
                | Command::Return(_)
                | Command::Void(_)
                | Command::Advance
                | Command::OpenBucket(_)
                | Command::SendStock(_)
                | Command::AcceptStock(_)
                | Command::SettleStock(_)
                | Command::DefineSpread(_)
                | Command::SetLayout(_)
                | Command::Configure(_)
                | Command::CopyAnswered(_)
                | Command::EraseCopy(_)
                | Command::LowerBegin(_)
                | Command::LowerCommit(_)
                | Command::LowerAbort(_)
                | Command::DeleteBegin(_)
                | Command::DeleteAbort(_)
                | Command::DeleteCommit(_)
                | Command::MoveStock(_) => GateLane::Finish,
            },
        }
    }
}

/// A question and the shard it goes to.
#[derive(Debug)]
pub(crate) struct Addressed {
    pub(crate) shard: ShardId,
    pub(crate) question: Question,
    pub(crate) consistency: Consistency,
}

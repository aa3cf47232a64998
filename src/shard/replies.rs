//! Replies to many questions, and which of them have to be asked again elsewhere.
//!
//! Only those of which nothing was taken are: leadership was on its way to another node, or the
//! shard does not own what the question names.

use super::ask::Addressed;
use super::desk::{Outcome, Reply};
use super::home::reply;
use crate::ledger::{Answer, PauseReason, Refusal};

/// Tells whether a shard was asked that does not own what the question names.
pub(super) fn is_misrouted(reply: &Reply) -> bool {
    matches!(&reply.outcome, Outcome::Answered(Answer::Refused(Refusal::NotOwner)))
}

/// Replies to many questions, put in their places as they come.
#[derive(Debug)]
pub(super) struct Replies(Vec<Option<Reply>>);

impl Replies {
    pub(super) fn new(count: usize) -> Replies {
        Replies(std::iter::repeat_with(|| None).take(count).collect())
    }

    /// Tells whether there is none yet.
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    pub(super) fn put(&mut self, at: usize, reply: Reply) {
        self.0[at] = Some(reply);
    }

    pub(super) fn put_all(&mut self, order: Vec<usize>, replies: Vec<Reply>) {
        for (at, reply) in order.into_iter().zip(replies) {
            self.put(at, reply);
        }
    }

    /// What has no reply by now is unknown.
    pub(super) fn finish(self) -> Vec<Reply> {
        let lost = || reply(Outcome::Unknown);
        self.0.into_iter().map(|one| one.unwrap_or_else(lost)).collect()
    }
}

/// Replies to questions that were put to one shard.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) replies: Vec<Reply>,
    /// Those that the shard does not own, with their places.
    pub(super) astray: Vec<(usize, Addressed)>,
}

impl Answered {
    /// Replies of which none says that the question went astray.
    pub(super) fn all(replies: Vec<Reply>) -> Answered {
        Answered { replies, astray: Vec::new() }
    }
}

/// What this node made of the questions that it was asked.
#[derive(Debug)]
pub(super) struct Here {
    pub(super) answered: Answered,
    /// Those of which nothing was taken because leadership moves, with their places.
    pub(super) moved: Vec<(usize, Addressed)>,
}

impl Here {
    pub(super) fn all(replies: Vec<Reply>) -> Here {
        Here { answered: Answered::all(replies), moved: Vec::new() }
    }
}

/// The questions whose replies are of a kind, with their places.
pub(super) fn those<Q>(
    replies: &[Reply],
    questions: &[Q],
    is_one: fn(&Reply) -> bool,
    addressed: impl Fn(&Q) -> Addressed,
) -> Vec<(usize, Addressed)> {
    let pairs = replies.iter().zip(questions).enumerate();
    pairs.filter(|(_, (reply, _))| is_one(reply)).map(|(at, (_, q))| (at, addressed(q))).collect()
}

pub(super) fn is_moving(reply: &Reply) -> bool {
    matches!(reply.outcome, Outcome::Paused(PauseReason::Moving))
}

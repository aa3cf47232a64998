//! The steward: one for each shard on each node. On the leader it asks for what has fallen due; on
//! every replica it makes checkpoints. It decides nothing: all that it asks for goes through the
//! log.

mod balance;
mod comparison;
mod delivery;
mod lowering;
mod policy;
mod resize;

pub use balance::Balance;
pub use comparison::Comparison;
pub use delivery::Delivery;
pub use policy::RunOut;
pub use resize::Resize;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::ledger::{Answer, Command, LeaderId, NodeId};
use crate::runtime::{self, Instant};
use crate::shard::{Outcome, Reply, Router, ShardService};

/// How often a steward looks around.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long an entry of the steward may take.
const COMMAND_MAX: Duration = Duration::from_secs(2);
/// How long a failed checkpoint rests before the next attempt.
const CHECKPOINT_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// What a steward goes by.
#[derive(Debug, Clone, Copy)]
pub struct StewardRules {
    /// A checkpoint is due after so many bytes of log.
    pub checkpoint_log_bytes: u64,
    /// A checkpoint is due after so many commands.
    pub checkpoint_commands: u64,
    /// A checkpoint is due after so long with changes.
    pub checkpoint_every: Duration,
    /// Replicas are compared this often while anything changes.
    pub compare_every: Duration,
    /// Leadership moves to its preferred node at most this often.
    pub prefer_every: Duration,
    /// This node.
    pub own: NodeId,
}

/// One shard's steward.
pub struct Steward {
    shard: ShardService,
    router: Arc<Router>,
    rules: StewardRules,
    stop: watch::Receiver<bool>,
    /// Volume applied at the last checkpoint, and when that was.
    kept: (u64, u64),
    kept_at: Instant,
    rest_until: Instant,
    stay: Stay,
    /// The leadership for which time was asked to advance once, so that it has a stamp to go by.
    timed: Option<LeaderId>,
}

/// How long leadership has been as it is: it came here, or a move from here was tried.
#[derive(Debug, Clone, Copy)]
struct Stay {
    led: Option<LeaderId>,
    since: Instant,
}

impl Stay {
    /// Tells whether it has lasted for longer than that. What has just come, by hand or by an
    /// election, begins anew.
    fn is_over(&mut self, led: Option<LeaderId>, now: Instant, lasts: Duration) -> bool {
        if self.led != led {
            *self = Stay { led, since: now };
        }
        now - self.since > lasts
    }
}

impl Steward {
    /// Makes a steward; [`Steward::run`] must be called on the shard's runtime.
    pub fn new(
        shard: ShardService,
        router: Arc<Router>,
        rules: StewardRules,
        stop: watch::Receiver<bool>,
    ) -> Steward {
        let now = runtime::now();
        Steward {
            shard,
            router,
            rules,
            stop,
            kept: (0, 0),
            kept_at: now,
            rest_until: now,
            stay: Stay { led: None, since: now },
            timed: None,
        }
    }

    /// Looks after the shard until the node stops.
    pub async fn run(mut self) {
        loop {
            if *self.stop.borrow() {
                return;
            }
            let swept_to_the_limit = self.advance_time().await;
            self.move_leadership().await;
            self.checkpoint().await;
            if swept_to_the_limit {
                runtime::yield_now().await;
            } else {
                runtime::sleep(LOOK_EVERY).await;
            }
        }
    }

    /// Proposes that time advances when a hold is due. Says whether there may be more to sweep.
    async fn advance_time(&mut self) -> bool {
        if !self.shard.leads() {
            return false;
        }
        let due = self.shard.replica().read().ledger.next_due();
        let leader = self.shard.group().leadership().map(|leadership| leadership.id);
        let wanted = match (due, self.shard.ledger_time()) {
            (None, _) => false,
            (Some(due), Some(now)) => due <= now,
            // Nothing was stamped here since the start: one entry gives time a base.
            (Some(_), None) => self.timed != leader,
        };
        if !wanted {
            return false;
        }
        self.timed = leader;
        let deadline = runtime::now() + COMMAND_MAX;
        let reply = self.router.command_on(self.shard.shard(), Command::Advance, deadline).await;
        match reply {
            Reply { outcome: Outcome::Answered(Answer::Advanced { swept }), .. } => swept > 0,
            Reply { .. } => false,
        }
    }

    /// Brings leadership to its preferred node when that is caught up, at most every so often:
    /// what has just come here, by hand or by an election, stays for as long.
    async fn move_leadership(&mut self) {
        let own = self.rules.own;
        let led = self.shard.group().leadership().map(|leadership| leadership.id);
        let rested = self.stay.is_over(led, runtime::now(), self.rules.prefer_every);
        let Some(preferred) = self.router.preferred(self.shard.shard()) else { return };
        self.shard.prefer(preferred);
        if own == preferred || !rested || !self.shard.leads() {
            return;
        }
        if !self.shard.could_lead(own, preferred) {
            return;
        }
        self.stay.since = runtime::now();
        if let Err(why) = self.shard.hand_over(own, Some(preferred)).await {
            tracing::info!(shard = %self.shard.shard(), to = %preferred, %why, "no transfer");
            return;
        }
        self.shard.count_homecoming();
    }

    async fn checkpoint(&mut self) {
        let now = runtime::now();
        let (commands, bytes) = self.shard.replica().volume();
        let (kept_commands, kept_bytes) = self.kept;
        let is_due = commands - kept_commands >= self.rules.checkpoint_commands
            || bytes - kept_bytes >= self.rules.checkpoint_log_bytes
            || (bytes > kept_bytes && now - self.kept_at >= self.rules.checkpoint_every);
        if !is_due || now < self.rest_until {
            return;
        }
        match self.shard.group().checkpoint().await {
            Ok(position) => {
                self.kept = (commands, bytes);
                self.kept_at = runtime::now();
                tracing::debug!(shard = %self.shard.shard(), index = %position.index, "checkpoint");
            }
            Err(_) if *self.stop.borrow() => {}
            Err(error) => {
                self.rest_until = runtime::now() + CHECKPOINT_AGAIN_AFTER;
                tracing::warn!(shard = %self.shard.shard(), %error, "no checkpoint was made");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A leadership that was moved by hand went back within a second to the node that the shard
    /// prefers, when its steward had not moved anything for a minute.
    #[test]
    fn leadership_that_has_just_come_stays_as_long_as_one_that_was_moved() {
        crate::raft::trial::run(async {
            let (at, minute) = (runtime::now(), Duration::from_secs(60));
            let led = |term| Some(LeaderId { term, node: NodeId(1) });
            let mut stay = Stay { led: None, since: at };
            for (after_s, led, over) in [
                (70, None, true),
                (71, led(2), false),
                (131, led(2), false),
                (132, led(2), true),
                (133, led(4), false),
                (193, led(4), false),
                (194, led(4), true),
            ] {
                let judged = stay.is_over(led, at + Duration::from_secs(after_s), minute);
                assert_eq!(judged, over, "after {after_s} s");
            }
        });
    }
}

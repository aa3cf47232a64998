//! The members' wall clocks beside each other.
//!
//! Every half second each node asks every other for its time, on a connection of its own, and takes
//! half of the round trip off. What it remembers is the other's wall clock *against this node's
//! monotonic one*, so that a jump of its own wall clock shows at once, at the next stamp, and not
//! only at the next question. From the offsets follows whether a majority of all members agrees
//! with this node's wall clock (then ledger time may go by it) and whether a majority disagrees
//! (then this node's clock is wild, and it does not lead).
//!
//! As it asks everybody all the time, it also says once when a member falls silent, and once when
//! it is heard again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::clock::WallClock;
use crate::codec;
use crate::ledger::{NodeId, UnixMs};
use crate::peer::{Address, Conversation, Lane, Link, Network, ReplyTo};
use crate::runtime::{self, Instant};
use crate::shard::{Abstaining, ClockStatus, ForwardConversation, MemberSpec, uuid_bytes};

/// The frame kind of the question for the time. The body is empty.
const CLOCK_FRAME: u16 = 33;
/// How often the others are asked.
pub(super) const ASK_EVERY: Duration = Duration::from_millis(500);
/// How long an answer may take: half of it is the error of the offset, far below the tolerance.
const ANSWER_MAX: Duration = Duration::from_millis(400);
/// Answers kept of each member; the one with the shortest round trip counts.
const SAMPLES_KEPT: usize = 4;
/// So many answers in a row that did not come are said once.
const SILENT_AFTER: u32 = 3;
/// An answer older than this says nothing any more.
const SAMPLE_AGE_MAX: Duration = Duration::from_secs(5);

/// What a member says when it is asked.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Told {
    wall: UnixMs,
    /// Whether it stands for election.
    stands: bool,
}

/// One answer of a member.
#[derive(Debug, Clone, Copy)]
struct Sample {
    /// Its wall clock minus this node's monotonic clock, in ms.
    against_monotonic: i64,
    round_trip: Duration,
    at: Instant,
}

/// What the offsets of the other members say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Verdict {
    /// A majority of all members, this one included, agrees with this clock.
    pub(super) agrees: bool,
    /// A majority of all members disagrees with it.
    pub(super) wild: bool,
}

/// Judges this clock by the offsets of all other members to it, in ms; `None` for those not known.
/// Clocks agree when they are no further apart than `offset_ms_max`.
pub(super) fn judge(others: &[Option<i64>], offset_ms_max: u64) -> Verdict {
    let majority = others.len().div_ceil(2) + 1;
    let near = |offset: &i64| offset.unsigned_abs() <= offset_ms_max;
    let known = || others.iter().flatten();
    let agreeing = 1 + known().filter(|offset| near(offset)).count();
    let differing = known().filter(|offset| !near(offset)).count();
    Verdict { agrees: agreeing >= majority, wild: differing >= majority }
}

#[derive(Debug, Default)]
struct Seen {
    others: BTreeMap<NodeId, VecDeque<Sample>>,
}

/// This node's wall clock beside those of the other members. One for all threads.
pub(super) struct Clocks {
    own: NodeId,
    wall: WallClock,
    /// How far apart clocks may be and still agree, in ms.
    offset_ms_max: u64,
    begun: Instant,
    seen: Mutex<Seen>,
    links: Mutex<BTreeMap<NodeId, Link>>,
    wild: AtomicBool,
    /// How many answers in a row each member has failed to give.
    missed: Mutex<BTreeMap<NodeId, u32>>,
    /// Whether this node stands for election, for those who ask.
    stands: AtomicBool,
    abstaining: Abstaining,
}

impl Clocks {
    /// Makes the clocks of a node among these members. `abstaining` learns who does not stand.
    pub(super) fn new(
        own: NodeId,
        wall: WallClock,
        offset_ms_max: u64,
        members: &[MemberSpec],
        abstaining: Abstaining,
    ) -> Clocks {
        let others = members.iter().filter(|member| member.node != own);
        let others = others.map(|member| (member.node, VecDeque::new())).collect();
        Clocks {
            own,
            wall,
            offset_ms_max,
            begun: runtime::now(),
            seen: Mutex::new(Seen { others }),
            links: Mutex::default(),
            wild: AtomicBool::new(false),
            missed: Mutex::default(),
            stands: AtomicBool::new(true),
            abstaining,
        }
    }

    /// Returns the wall clock if a majority of all members' clocks agrees with it now.
    pub(super) fn agreed(&self) -> Option<UnixMs> {
        let wall = self.wall.now();
        judge(&self.offsets(wall, runtime::now()), self.offset_ms_max).agrees.then_some(wall)
    }

    /// Tells whether this node's clock is more than the tolerance from a majority of all members.
    /// Once it was, it is until a majority agrees with it again.
    pub(super) fn is_wild(&self) -> bool {
        self.wild.load(Ordering::Relaxed)
    }

    /// Says whether this node stands for election, for those who ask.
    pub(super) fn set_stands(&self, stands: bool) {
        self.stands.store(stands, Ordering::Relaxed);
    }

    /// Returns how the clocks are.
    pub(super) fn status(&self) -> ClockStatus {
        let (wall, now) = (self.wall.now(), runtime::now());
        let offsets = self.offsets(wall, now);
        let nodes: Vec<NodeId> = self.seen.lock().others.keys().copied().collect();
        let known = nodes.into_iter().zip(&offsets).filter_map(|(node, ms)| Some((node, (*ms)?)));
        ClockStatus {
            offset_ms: known.collect(),
            agrees: judge(&offsets, self.offset_ms_max).agrees,
            wild: self.is_wild(),
            offset_ms_max: self.offset_ms_max,
            silent: self.silent(),
        }
    }

    /// Returns the members that have failed to answer several times in a row.
    fn silent(&self) -> Vec<NodeId> {
        let missed = self.missed.lock();
        missed.iter().filter(|(_, times)| **times >= SILENT_AFTER).map(|(node, _)| *node).collect()
    }

    fn monotonic_ms(&self, at: Instant) -> i64 {
        let passed = if at > self.begun { at - self.begun } else { Duration::ZERO };
        i64::try_from(passed.as_millis()).unwrap_or(i64::MAX)
    }

    /// Returns, for each other member, its clock minus this node's in ms, if it is known.
    fn offsets(&self, wall: UnixMs, now: Instant) -> Vec<Option<i64>> {
        let own = signed(wall).saturating_sub(self.monotonic_ms(now));
        let fresh = |sample: &&Sample| now <= sample.at || now - sample.at <= SAMPLE_AGE_MAX;
        let seen = self.seen.lock();
        let best = seen
            .others
            .values()
            .map(|samples| samples.iter().filter(fresh).min_by_key(|sample| sample.round_trip));
        best.map(|sample| Some(sample?.against_monotonic.saturating_sub(own))).collect()
    }

    /// Asks every other member once, all at the same time, and judges.
    pub(super) async fn ask_all(&self, members: Vec<MemberSpec>, network: &Network) {
        self.follow(&members);
        let asked = members.iter().filter(|member| member.node != self.own).map(|member| async {
            let Some(link) = self.link(member, network) else { return };
            let sent_at = runtime::now();
            let answer = link.send(CLOCK_FRAME, Bytes::new(), sent_at + ANSWER_MAX).await;
            let now = runtime::now();
            let told = answer
                .map_err(|error| error.to_string())
                .and_then(|bytes| codec::decode::<Told>(&bytes).map_err(|error| error.to_string()));
            match told {
                Ok(told) => {
                    self.note_heard(member);
                    self.hear(member.node, told, sent_at, now);
                }
                Err(why) => self.note_missed(member, &why),
            }
        });
        futures_util::future::join_all(asked).await;
        self.rejudge();
    }

    fn note_heard(&self, member: &MemberSpec) {
        let missed = self.missed.lock().remove(&member.node).unwrap_or_default();
        if missed >= SILENT_AFTER {
            tracing::info!(node = %member.node, addr = %member.peer_addr, "a node answers again");
        }
    }

    fn note_missed(&self, member: &MemberSpec, why: &str) {
        let missed = {
            let mut missed = self.missed.lock();
            let missed = missed.entry(member.node).or_default();
            *missed = missed.saturating_add(1);
            *missed
        };
        if missed == SILENT_AFTER {
            let addr = &member.peer_addr;
            tracing::warn!(node = %member.node, %addr, why, "a node does not answer");
        }
    }

    fn rejudge(&self) {
        let offsets = self.offsets(self.wall.now(), runtime::now());
        let Verdict { agrees, wild } = judge(&offsets, self.offset_ms_max);
        let was = self.is_wild();
        if wild && !was {
            tracing::error!(
                ?offsets,
                offset_ms_max = self.offset_ms_max,
                "this node's clock is too far from those of a majority of the members: it does \
                 not lead until they agree; set the clock right"
            );
            self.wild.store(true, Ordering::Relaxed);
        } else if was && agrees {
            tracing::warn!("this node's clock agrees with a majority of the members again");
            self.wild.store(false, Ordering::Relaxed);
        }
    }

    /// Knows these members and no others.
    fn follow(&self, members: &[MemberSpec]) {
        let is_member = |node: &NodeId| members.iter().any(|member| member.node == *node);
        let mut seen = self.seen.lock();
        seen.others.retain(|node, _| is_member(node));
        for member in members.iter().filter(|member| member.node != self.own) {
            seen.others.entry(member.node).or_default();
        }
        drop(seen);
        self.links.lock().retain(|node, _| is_member(node));
        self.missed.lock().retain(|node, _| is_member(node));
    }

    fn hear(&self, node: NodeId, told: Told, sent_at: Instant, now: Instant) {
        self.abstaining.note(node, told.stands);
        let round_trip = now - sent_at;
        let half = i64::try_from(round_trip.as_millis() / 2).unwrap_or(0);
        let against_monotonic =
            signed(told.wall).saturating_sub(self.monotonic_ms(now).saturating_sub(half));
        let sample = Sample { against_monotonic, round_trip, at: now };
        let mut seen = self.seen.lock();
        let Some(samples) = seen.others.get_mut(&node) else { return };
        // A clock that was set is another clock: what it said before says nothing of it.
        let jumped = |old: &Sample| {
            old.against_monotonic.abs_diff(against_monotonic) > self.offset_ms_max / 2
        };
        samples.retain(|old| !jumped(old));
        if samples.len() == SAMPLES_KEPT {
            samples.pop_front();
        }
        samples.push_back(sample);
    }

    fn link(&self, member: &MemberSpec, network: &Network) -> Option<Link> {
        let log_uuid = uuid_bytes(&member.log_uuid)?;
        let to = Address { node: member.node, log_uuid, addr: member.peer_addr.clone() };
        let mut links = self.links.lock();
        if let Some(link) = links.get(&member.node)
            && link.to() == &to
        {
            return Some(link.clone());
        }
        let link = network.link(to, None, Lane::Forward);
        links.insert(member.node, link.clone());
        Some(link)
    }

    fn tell(&self) -> Told {
        Told { wall: self.wall.now(), stands: self.stands.load(Ordering::Relaxed) }
    }
}

fn signed(wall: UnixMs) -> i64 {
    i64::try_from(wall.0).unwrap_or(i64::MAX)
}

/// The serving side of the lane between nodes that belongs to no shard: forwarded questions, and
/// the question for the time.
pub(super) struct NodeConversation {
    clocks: Arc<Clocks>,
    forward: ForwardConversation,
}

impl NodeConversation {
    pub(super) fn new(clocks: Arc<Clocks>, forward: ForwardConversation) -> NodeConversation {
        NodeConversation { clocks, forward }
    }
}

impl Conversation for NodeConversation {
    fn frame(&mut self, kind: u16, body: Bytes, reply: ReplyTo) {
        if kind != CLOCK_FRAME {
            self.forward.frame(kind, body, reply);
            return;
        }
        match codec::encode(&self.clocks.tell()) {
            Ok(bytes) => reply.send(Bytes::from(bytes)),
            Err(error) => reply.refuse(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicI64;

    #[test]
    fn a_clock_is_judged_by_a_majority_of_all_members() {
        let (near, far, none) = (Some(-2_000), Some(2_001), None);
        for (others, agrees, wild) in [
            (vec![], true, false),
            (vec![near], true, false),
            (vec![far], false, false),
            (vec![none], false, false),
            (vec![near, far], true, false),
            (vec![near, none], true, false),
            (vec![far, none], false, false),
            (vec![far, far], false, true),
            (vec![none, none], false, false),
            (vec![near, far, far], false, false),
            (vec![far, far, far], false, true),
            (vec![near, near, far, far], true, false),
            (vec![near, far, far, far], false, true),
            (vec![near, near, none, none], true, false),
            (vec![far, far, none, none], false, false),
        ] {
            assert_eq!(judge(&others, BOUND), Verdict { agrees, wild }, "{others:?}");
        }
    }

    const BOUND: u64 = 2_000;

    fn members(count: u64) -> Vec<MemberSpec> {
        let member = |node| MemberSpec { node: NodeId(node), ..MemberSpec::default() };
        (1..=count).map(member).collect()
    }

    fn told(wall: UnixMs, ahead_ms: i64) -> Told {
        Told { wall: UnixMs(wall.0.saturating_add_signed(ahead_ms)), stands: true }
    }

    #[test]
    fn a_jump_of_the_own_clock_shows_at_once_without_another_question() {
        let offset = Arc::new(AtomicI64::new(0));
        let wall = WallClock::with_offset(Arc::clone(&offset));
        let clocks =
            Clocks::new(NodeId(1), wall.clone(), BOUND, &members(3), Abstaining::default());
        assert_eq!(clocks.agreed(), None, "nobody was asked yet");
        let now = runtime::now();
        for node in [2, 3] {
            clocks.hear(NodeId(node), told(wall.now(), 100), now, now);
        }
        assert!(clocks.agreed().is_some());
        offset.store(-3_600_000, Ordering::Relaxed);
        assert_eq!(clocks.agreed(), None);
        clocks.rejudge();
        assert!(clocks.is_wild());
        offset.store(0, Ordering::Relaxed);
        clocks.rejudge();
        assert!(!clocks.is_wild());
    }

    #[test]
    fn the_answer_with_the_shortest_round_trip_counts_and_a_set_clock_is_another() {
        let wall = WallClock::system();
        let clocks =
            Clocks::new(NodeId(1), wall.clone(), BOUND, &members(2), Abstaining::default());
        let now = runtime::now();
        let later = |ms| now + Duration::from_millis(ms);
        clocks.hear(NodeId(2), told(wall.now(), 40), now, now);
        clocks.hear(NodeId(2), told(wall.now(), 700), now, later(300));
        let offset = clocks.status().offset_ms[0].1;
        assert!((0..=80).contains(&offset), "{offset}");
        clocks.hear(NodeId(2), told(wall.now(), 90_000), now, later(300));
        let offset = clocks.status().offset_ms[0].1;
        assert!((89_000..=91_000).contains(&offset), "{offset}");
    }

    #[test]
    fn a_member_that_does_not_stand_is_known_to_abstain() {
        let abstaining = Abstaining::default();
        let wall = WallClock::system();
        let clocks = Clocks::new(NodeId(1), wall.clone(), BOUND, &members(3), abstaining.clone());
        let now = runtime::now();
        let said = |stands| Told { wall: wall.now(), stands };
        clocks.hear(NodeId(3), said(false), now, now);
        assert!(abstaining.has(NodeId(3)) && !abstaining.has(NodeId(2)));
        clocks.hear(NodeId(3), said(true), now, now);
        assert!(!abstaining.has(NodeId(3)));
    }
}

//! The router: finds the shard and the node that a question belongs to, and asks there.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use futures_util::future::BoxFuture;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use super::ask::Addressed;
use super::desk::{Consistency, Hop, MemberSpec, Outcome, Question, Reply, Request};
use super::directory::Directory;
use super::fence::Fence;
use super::flight::FlightBoard;
use super::forward::forward;
use super::gate::{flight_key, read, stand_on};
use super::handover::Abstaining;
use super::home::{Door, Home, reply};
use super::learning::no_such_shard;
use super::meter::Meter;
use super::placement::shard_of;
use super::replies::{Answered, Here, Replies, is_misrouted, is_moving, those};
use super::slake::is_dry;
use super::sold_out::Collects;
use super::status::DigestStatus;
use super::stock_meter::StockMeter;
use super::supply::StockPolicy;
use super::thirst::Thirst;
use super::turns::Turns;
use crate::ledger::{Foreseen, NodeId, PauseReason, Query, ShardId};
use crate::peer::{Address, Lane, Link, Network};
use crate::planted::{Fault, planted};
use crate::raft::{Group, Replica};
use crate::runtime::Instant;

/// One shard as the router sees it.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) group: Group,
    pub(crate) replica: Arc<Replica>,
    pub(crate) fence: Arc<Fence>,
    pub(crate) meter: Arc<Meter>,
    pub(crate) board: Arc<FlightBoard>,
    pub(crate) door: Door,
    pub(crate) abstaining: Abstaining,
    pub(crate) digests: Arc<Mutex<DigestStatus>>,
}

/// The router of one node. One for all threads; each thread has a home of its own.
pub struct Router {
    id: u64,
    node: NodeId,
    places: Vec<Place>,
    members: RwLock<BTreeMap<NodeId, MemberSpec>>,
    network: Network,
    /// Where the buckets of spread items live.
    pub(super) directory: Directory,
    /// Who waits at dry buckets of spread items.
    pub(super) thirst: Arc<Thirst>,
    /// How much stock moves between buckets.
    pub(super) policy: Arc<dyn StockPolicy>,
    pub(super) stock: StockMeter,
    /// Verdicts on spread items whose home is led here.
    pub(super) collects: Collects,
    /// Whose turn it is to lead when all is well.
    turns: RwLock<Turns>,
    /// Why this node's part has ended, when another told it.
    dismissed: watch::Sender<Option<String>>,
    /// The homes of all threads. They live as long as the router, or until their runtime ends.
    homes: Mutex<Vec<Arc<Home>>>,
}

static ROUTERS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// This thread's homes, by router: a test process may run several nodes on one thread.
    static HOMES: RefCell<BTreeMap<u64, Weak<Home>>> = const { RefCell::new(BTreeMap::new()) };
}

impl std::fmt::Debug for Router {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Router").field("node", &self.node).finish_non_exhaustive()
    }
}

impl Router {
    pub(crate) fn new(
        node: NodeId,
        places: Vec<Place>,
        members: Vec<MemberSpec>,
        network: Network,
        thirst: Arc<Thirst>,
        policy: Arc<dyn StockPolicy>,
    ) -> Router {
        let turns = Turns::of(members.iter().map(|member| member.node));
        let members = members.into_iter().map(|member| (member.node, member)).collect();
        Router {
            turns: RwLock::new(turns),
            dismissed: watch::Sender::new(None),
            id: ROUTERS.fetch_add(1, Ordering::Relaxed),
            node,
            places,
            members: RwLock::new(members),
            network,
            directory: Directory::default(),
            thirst,
            policy,
            stock: StockMeter::default(),
            collects: Collects::default(),
            homes: Mutex::default(),
        }
    }

    /// Returns the members in the order of their ids.
    pub fn members(&self) -> Vec<MemberSpec> {
        self.members.read().values().cloned().collect()
    }

    /// Knows these members from now on, and whose turn it is to lead.
    pub fn follow_members(&self, members: Vec<MemberSpec>, turns: Turns) {
        let members: BTreeMap<NodeId, MemberSpec> =
            members.into_iter().map(|one| (one.node, one)).collect();
        // Connections to those who went, or are elsewhere now, go with them.
        for home in self.homes.lock().iter() {
            home.links.lock().retain(|node, link| {
                members.get(node).is_some_and(|member| link.to() == &address_of(member))
            });
        }
        *self.members.write() = members;
        *self.turns.write() = turns;
    }

    /// Names the node that leads a shard when all is well.
    pub fn preferred(&self, shard: ShardId) -> Option<NodeId> {
        self.turns.read().preferred(shard)
    }

    /// Takes the word of another node that this one's part has ended.
    pub(crate) fn dismiss(&self, why: String) {
        self.dismissed.send_replace(Some(why));
    }

    /// Notes that the roster has this node among the removed.
    pub fn dismiss_self(&self) {
        self.dismiss(super::nodes::removed_words(self.node));
    }

    /// Lets the caller wait until another node says that this one's part has ended.
    pub fn dismissed(&self) -> watch::Receiver<Option<String>> {
        self.dismissed.subscribe()
    }

    /// Returns this node.
    pub fn own(&self) -> NodeId {
        self.node
    }

    pub(crate) fn places(&self) -> &[Place] {
        &self.places
    }

    /// Forgets this thread's home. For a thread that carries no more requests.
    pub fn leave_thread(&self) {
        let home = HOMES.with_borrow_mut(|homes| homes.remove(&self.id));
        if let Some(home) = home.and_then(|home| home.upgrade()) {
            self.homes.lock().retain(|other| !Arc::ptr_eq(other, &home));
        }
    }

    /// Returns this thread's home; another one when the runtime of the last has ended.
    pub(super) fn home(self: &Arc<Router>) -> Arc<Home> {
        HOMES.with_borrow_mut(|homes| {
            let known = homes.get(&self.id).and_then(Weak::upgrade);
            if let Some(home) = known.filter(|home| !home.is_gone()) {
                return home;
            }
            let home = self.open_home();
            homes.retain(|_, home| home.strong_count() > 0);
            homes.insert(self.id, Arc::downgrade(&home));
            home
        })
    }

    #[cfg(all(test, not(feature = "sim")))]
    pub(super) fn home_is_gone(&self) -> bool {
        self.homes.lock().iter().all(|home| home.is_gone())
    }

    fn open_home(&self) -> Arc<Home> {
        let doors = self.places.iter().map(|place| place.door.clone()).collect();
        let fences: Vec<_> = self.places.iter().map(|place| Arc::clone(&place.fence)).collect();
        let stale = move |shard: ShardId| {
            fences.get(usize::from(shard.0)).is_some_and(|fence| fence.is_stale())
        };
        let home = Home::open(doors, Arc::new(stale));
        let mut homes = self.homes.lock();
        homes.retain(|home| !home.is_gone());
        homes.push(Arc::clone(&home));
        home
    }

    /// Answers one question.
    pub async fn answer(self: Arc<Router>, request: Request) -> Reply {
        let Request { question, deadline, consistency, hop } = request;
        // Most of a sold-out sale's answers end here.
        if let Some(shard) = self.shard_named(&question)
            && let Some(reply) = self.place(shard).and_then(|p| p.recall(&question, consistency))
            && !is_misrouted(&reply)
        {
            let asked = Addressed { shard, question, consistency };
            return self.slake(asked, reply, deadline).await;
        }
        let none = self.learn_missing([&question], deadline).await;
        let Some(shard) = self.shard_named(&question) else {
            return self.nowhere(&question, &none);
        };
        let asked = Addressed { shard, question, consistency };
        if consistency == Consistency::Local
            && let Some(reply) = self.recall_here(&asked)
        {
            return reply;
        }
        let Answered { mut replies, astray } =
            self.answer_group(shard, vec![asked], deadline, hop).await;
        replies.extend(self.redirect(astray, deadline, hop).await.into_iter().map(|(_, one)| one));
        let reply = replies.pop().unwrap_or_else(|| reply(Outcome::Unknown));
        self.learn_from(&reply.outcome);
        reply
    }

    /// Answers many questions of one caller, densely and in order.
    pub async fn answer_all(self: Arc<Router>, requests: Vec<Request>) -> Vec<Reply> {
        let Some(first) = requests.first() else { return Vec::new() };
        let (deadline, hop) = (first.deadline, first.hop);
        let questions = requests.iter().map(|request| &request.question);
        let none = self.learn_missing(questions, deadline).await;
        self.learn_first(&first.question);
        let mut replies = Replies::new(requests.len());
        let mut by_shard: BTreeMap<ShardId, (Vec<usize>, Vec<Addressed>)> = BTreeMap::new();
        for (at, Request { question, consistency, .. }) in requests.into_iter().enumerate() {
            let Some(place) = self.place_of(&question) else {
                replies.put(at, self.nowhere(&question, &none));
                continue;
            };
            // This node's replica, whoever leads and whether or not anybody does.
            if consistency == Consistency::Local
                && let Some(reply) = place.recall(&question, consistency)
            {
                replies.put(at, reply);
                continue;
            }
            let shard = place.door.shard;
            let (order, asked) = by_shard.entry(shard).or_default();
            order.push(at);
            asked.push(Addressed { shard, question, consistency });
        }
        if by_shard.len() == 1 && replies.is_empty() {
            // Then they stand in the order in which they were asked.
            let Some((shard, (_, asked))) = by_shard.pop_first() else { return Vec::new() };
            let Answered { mut replies, astray } =
                self.answer_group(shard, asked, deadline, hop).await;
            for (at, reply) in self.redirect(astray, deadline, hop).await {
                replies[at] = reply;
            }
            return replies;
        }
        let groups = by_shard.into_iter().map(|(shard, (order, asked))| {
            let router = Arc::clone(&self);
            async move { (order, router.answer_group(shard, asked, deadline, hop).await) }
        });
        let mut all_astray = Vec::new();
        for (order, Answered { replies: answers, astray }) in
            futures_util::future::join_all(groups).await
        {
            all_astray.extend(astray.into_iter().map(|(at, asked)| (order[at], asked)));
            replies.put_all(order, answers);
        }
        for (at, reply) in self.redirect(all_astray, deadline, hop).await {
            replies.put(at, reply);
        }
        replies.finish()
    }

    /// Asks one shard, wherever it is led.
    pub(super) async fn answer_group(
        self: &Arc<Router>,
        shard: ShardId,
        questions: Vec<Addressed>,
        deadline: Instant,
        hop: Hop,
    ) -> Answered {
        if !self.places[usize::from(shard.0)].leads_here() {
            return self.elsewhere(shard, questions, deadline, hop).await;
        }
        let Here { mut answered, moved } = self.here(questions, deadline, false).await;
        if !moved.is_empty() {
            let (order, questions): (Vec<usize>, Vec<_>) = moved.into_iter().unzip();
            let Answered { replies, astray } =
                self.elsewhere(shard, questions, deadline, hop).await;
            answered.astray.extend(astray.into_iter().map(|(at, asked)| (order[at], asked)));
            for (at, reply) in order.into_iter().zip(replies) {
                answered.replies[at] = reply;
            }
        }
        answered
    }

    /// Answers questions to one shard that another node forwarded: here or not at all.
    pub(crate) async fn answer_here(
        self: &Arc<Router>,
        shard: ShardId,
        questions: Vec<(Question, Consistency)>,
        deadline: Instant,
    ) -> Vec<Reply> {
        if self.place(shard).is_none() {
            return vec![no_such_shard(); questions.len()];
        }
        let asked = |(question, consistency)| Addressed { shard, question, consistency };
        let asked: Vec<Addressed> = questions.into_iter().map(asked).collect();
        let alone = asked.len() == 1;
        self.here(asked, deadline, alone).await.answered.replies
    }

    /// Asks a shard by its number, wherever it is led.
    pub(crate) fn ask_shard(
        self: &Arc<Router>,
        shard: ShardId,
        question: Question,
        deadline: Instant,
    ) -> BoxFuture<'static, Reply> {
        let router = Arc::clone(self);
        Box::pin(async move {
            if router.place(shard).is_none() {
                return no_such_shard();
            }
            let asked = vec![Addressed { shard, question, consistency: Consistency::Leader }];
            let mut answered = router.answer_group(shard, asked, deadline, Hop::Forward).await;
            answered.replies.pop().unwrap_or_else(|| reply(Outcome::Unknown))
        })
    }

    /// Answers questions on this node, whose memory was not asked yet when it `recalls`.
    async fn here(
        self: &Arc<Router>,
        questions: Vec<Addressed>,
        deadline: Instant,
        recalls: bool,
    ) -> Here {
        if !recalls && questions.iter().all(Addressed::needs_the_shard) {
            return self.ask_home(questions, deadline).await;
        }
        let mut replies = Replies::new(questions.len());
        let (mut order, mut sent) = (Vec::new(), Vec::with_capacity(questions.len()));
        for (at, asked) in questions.into_iter().enumerate() {
            let place = &self.places[usize::from(asked.shard.0)];
            match place.answer_now(&asked, recalls, deadline).await {
                Some(reply) => replies.put(at, self.slake(asked, reply, deadline).await),
                None => {
                    order.push(at);
                    sent.push(asked);
                }
            }
        }
        if sent.is_empty() {
            return Here::all(replies.finish());
        }
        let Here { answered, mut moved } = self.ask_home(sent, deadline).await;
        let Answered { replies: answers, mut astray } = answered;
        for (at, _) in moved.iter_mut().chain(&mut astray) {
            *at = order[*at];
        }
        replies.put_all(order, answers);
        Here { answered: Answered { replies: replies.finish(), astray }, moved }
    }

    /// Puts questions to their shards' threads.
    async fn ask_home(self: &Arc<Router>, questions: Vec<Addressed>, deadline: Instant) -> Here {
        let count = questions.len();
        let Some(sent) = self.home().send(questions, deadline) else {
            return Here::all(vec![reply(Outcome::Overloaded); count]);
        };
        let unknown = |_| vec![reply(Outcome::Unknown); count];
        let mut replies = sent.answers.await.unwrap_or_else(unknown);
        let asked = &sent.enquiry.questions;
        // Nothing was taken of these: leadership is on its way to another node.
        let moved = those(&replies, asked, is_moving, Addressed::clone);
        let astray = those(&replies, asked, is_misrouted, Addressed::clone);
        let dry = replies.iter().zip(&sent.enquiry.questions).enumerate();
        let dry = dry.filter(|(_, (reply, _))| is_dry(reply));
        let dry: Vec<_> =
            dry.map(|(at, (reply, asked))| (at, asked.clone(), reply.clone())).collect();
        if !dry.is_empty() {
            for (at, reply) in self.slake_all(dry, deadline).await {
                replies[at] = reply;
            }
        }
        Here { answered: Answered { replies, astray }, moved }
    }

    async fn elsewhere(
        self: &Arc<Router>,
        shard: ShardId,
        questions: Vec<Addressed>,
        deadline: Instant,
        hop: Hop,
    ) -> Answered {
        let count = questions.len();
        let all = |outcome: Outcome| Answered::all(vec![reply(outcome); count]);
        let place = &self.places[usize::from(shard.0)];
        let leader = place.group.leader();
        if leader == Some(self.node) {
            return all(Outcome::Paused(PauseReason::Moving));
        }
        // A caller sent after a leader that is silent would wait there until its deadline.
        let silent = place.fence.leader_is_silent();
        let leader = leader.filter(|_| !silent);
        let member = leader.and_then(|leader| self.members.read().get(&leader).cloned());
        let Some(member) = member else {
            return all(Outcome::Paused(PauseReason::QuorumLost));
        };
        match hop {
            Hop::Redirect => all(Outcome::Elsewhere { node: member.node, http: member.http_addr }),
            Hop::Forward => {
                let link = self.link(&member);
                // It could not be reached a moment ago: nobody waits for the next dial.
                if link.is_down() {
                    return all(Outcome::Paused(PauseReason::QuorumLost));
                }
                place.meter.forwarded(count);
                let questions =
                    questions.into_iter().map(|asked| (asked.question, asked.consistency));
                let questions: Vec<_> = questions.collect();
                let replies = forward(&link, shard, &questions, deadline).await;
                let astray = those(&replies, &questions, is_misrouted, |asked| Addressed {
                    shard,
                    question: asked.0.clone(),
                    consistency: asked.1,
                });
                Answered { replies, astray }
            }
        }
    }

    /// Returns this thread's connection to a member, for forwarding.
    pub(crate) fn link(self: &Arc<Router>, member: &MemberSpec) -> Link {
        let home = self.home();
        let mut links = home.links.lock();
        let open = || self.network.link(address_of(member), None, Lane::Forward);
        links.entry(member.node).or_insert_with(open).clone()
    }

    /// Finds the shard that a question names; `None` when there is none, or it is not known here.
    pub(super) fn shard_named(&self, question: &Question) -> Option<ShardId> {
        let shard = shard_of(question, self.shard_count(), &self.directory)?;
        self.place(shard).map(|_| shard)
    }

    fn place_of(&self, question: &Question) -> Option<&Place> {
        self.place(self.shard_named(question)?)
    }

    pub(crate) fn place(&self, shard: ShardId) -> Option<&Place> {
        self.places.get(usize::from(shard.0))
    }

    pub(crate) fn shard_count(&self) -> u16 {
        u16::try_from(self.places.len()).unwrap_or(u16::MAX)
    }

    /// Tells whether this node leads a shard, fresh or not.
    pub(super) fn leads(&self, shard: ShardId) -> bool {
        self.place(shard).is_some_and(Place::leads_here)
    }

    /// Returns a connection to the leader of a shard; `None` while none is heard, or it is here.
    pub(super) fn link_to_leader(self: &Arc<Router>, shard: ShardId) -> Option<Link> {
        let place = self.place(shard)?;
        let leader = place.group.leader().filter(|leader| *leader != self.node)?;
        if place.fence.leader_is_silent() {
            return None;
        }
        let member = self.members.read().get(&leader).cloned()?;
        Some(self.link(&member)).filter(|link| !link.is_down())
    }

    /// Answers from memory here what a leader's memory can.
    pub(super) fn recall_here(&self, asked: &Addressed) -> Option<Reply> {
        self.place(asked.shard)?.recall(&asked.question, asked.consistency)
    }
}

fn address_of(member: &MemberSpec) -> Address {
    Address {
        node: member.node,
        log_uuid: super::desk::uuid_bytes(&member.log_uuid).unwrap_or_default(),
        addr: member.peer_addr.clone(),
    }
}

impl Place {
    fn leads_here(&self) -> bool {
        self.fence.leadership().is_some()
    }

    /// Answers on this thread what memory can: any query that may be stale, and a placement that
    /// applied state refuses or has granted before. It may only refuse or replay, never grant, and
    /// says `None` when anything is unclear.
    fn recall(&self, question: &Question, consistency: Consistency) -> Option<Reply> {
        let command = match question {
            Question::Query { query, .. } if consistency == Consistency::Local => {
                let shard = self.door.shard;
                return Some(read(&self.replica, &self.fence, shard, query, consistency));
            }
            Question::Command(command) if command.is_place() => command,
            Question::Query { .. } | Question::Command(_) => return None,
        };
        self.fence.leadership()?;
        let state = self.replica.try_read()?;
        let key = flight_key(&state.ledger, command.scope())?;
        if self.board.may_hold(key) {
            return None;
        }
        let Foreseen::Answer(answer) = state.ledger.foresee(command) else { return None };
        let applied = state.applied;
        drop(state);
        self.fence.may_answer(applied).ok()?;
        self.meter.answered(&answer, true);
        Some(stand_on(Outcome::Answered(answer), self.door.shard, applied))
    }

    /// Answers what needs no turn of the shard's thread: queries other than receipts and, of a
    /// question that came alone, what memory says. A linearizable one waits for its read index.
    async fn answer_now(
        &self,
        asked: &Addressed,
        recalls: bool,
        deadline: Instant,
    ) -> Option<Reply> {
        let (question, consistency) = (&asked.question, asked.consistency);
        if recalls && let Some(reply) = self.recall(question, consistency) {
            return Some(reply);
        }
        if consistency == Consistency::Linearizable
            && !planted(Fault::NoReadIndex)
            && let Err(why) = self.group.read_index(deadline).await
        {
            tracing::debug!(%why, "no read index");
            return Some(reply(Outcome::Paused(PauseReason::QuorumLost)));
        }
        match question {
            Question::Query { query: Query::Receipt(_), .. } | Question::Command(_) => None,
            Question::Query { query, .. } => {
                Some(read(&self.replica, &self.fence, self.door.shard, query, consistency))
            }
        }
    }
}

//! What nodes ask of each other about the membership, on the lane that belongs to no shard.
//!
//! A stranger (a node that was removed, or one with another log than the one on record) is let in
//! as far as the lobby: there it may ask how it stands, and nothing else.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::report::{NodeReport, ReplicaReport, Sight};
use crate::codec;
use crate::ledger::{NodeId, ROSTER_SHARD, Roster, SchemaRange, SeatRole, ShardId};
use crate::peer::{Conversation, PeerId, ReplyTo};
use crate::runtime::{self, Instant};
use crate::shard::desk::MemberSpec;
use crate::shard::router::Router;

/// The frame kind of errands.
pub(crate) const ERRAND_FRAME: u16 = 36;
/// How long a node may take to tell how its replicas are.
const REPORT_MAX: Duration = Duration::from_millis(500);

/// How long it may take to write new addresses down.
const MOVE_MAX: Duration = Duration::from_secs(1);

/// What one node asks of another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Errand {
    /// How its replicas are.
    Report,
    /// Hand the leadership of a shard over, to this node or to whoever can win.
    HandOver { shard: ShardId, to: Option<NodeId> },
    /// Make a checkpoint of a shard.
    Checkpoint { shard: ShardId },
    /// You are removed.
    Dismiss { why: String },
    /// I am at other addresses now. One whom no leader finds can reach the others all the same.
    Moved(MemberSpec),
    /// How do I stand? The only one that a stranger may ask.
    Standing,
    /// Which schema versions it reads.
    Schema,
    /// The roster, as far as it has applied it.
    Roster,
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Errands {
    Report(NodeReport),
    Done(Result<String, String>),
    Standing(Standing),
    Schema(SchemaRange),
    Roster(Box<Roster>),
}

/// How a node stands in the cluster, as another knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Standing {
    /// It belongs to it, or this node knows nothing against it.
    Member,
    /// It was removed, or its log is not the one on record; in words.
    Ended(String),
}

/// Judges how a peer stands by a roster.
pub fn standing(roster: &Roster, peer: &PeerId) -> Standing {
    let node = peer.node;
    match roster.nodes.get(&node) {
        Some(seat) if seat.role == SeatRole::Removed => Standing::Ended(removed_words(node)),
        Some(seat) if seat.log_uuid != peer.log_uuid && seat.log_uuid != [0; 16] => {
            Standing::Ended(format!(
                "the cluster has another log on record for node {node}: this one was wiped or \
                 made anew, so it has forgotten what the node promised and may not vote. Bring \
                 this machine back under a new id: `holdfast node replace {node}`, then empty its \
                 data directory and start it with the token"
            ))
        }
        Some(_) | None => Standing::Member,
    }
}

/// Says to a node that it was removed.
pub(crate) fn removed_words(node: NodeId) -> String {
    format!(
        "node {node} was removed from the cluster, and its id is never used again. To bring this \
         machine back: run `holdfast node add` on another node, empty this one's data directory, \
         and start it with `holdfast serve --join URL --token TOKEN`"
    )
}

/// Says to a peer why it is not let in.
fn stranger_words(roster: &Roster, peer: &PeerId) -> String {
    match standing(roster, peer) {
        Standing::Ended(why) => why,
        Standing::Member => format!(
            "{peer} is no member of this cluster: a node whose log was lost or made anew is let in \
             under a new id only: `holdfast node replace {}` gives it one",
            peer.node
        ),
    }
}

/// Begins the conversation with a member; `None` while the peer is none.
type LetIn = Box<dyn Fn() -> Option<Box<dyn Conversation>> + Send>;

/// The conversation with a stranger, until it is a member: a machine that has just been let in
/// comes before everybody has heard of it, and its connection stays.
pub struct Lobby {
    router: Arc<Router>,
    peer: PeerId,
    let_in: LetIn,
    inside: Option<Box<dyn Conversation>>,
}

impl Lobby {
    /// Lets a stranger ask how it stands; `let_in` is asked with each call whether it still is one.
    pub fn new(
        router: Arc<Router>,
        peer: PeerId,
        let_in: impl Fn() -> Option<Box<dyn Conversation>> + Send + 'static,
    ) -> Lobby {
        Lobby { router, peer, let_in: Box::new(let_in), inside: None }
    }
}

impl Conversation for Lobby {
    fn frame(&mut self, kind: u16, body: Bytes, reply: ReplyTo) {
        if self.inside.is_none() {
            self.inside = (self.let_in)();
        }
        if let Some(inside) = &mut self.inside {
            return inside.frame(kind, body, reply);
        }
        let asked = (kind == ERRAND_FRAME).then(|| codec::decode::<Errand>(&body).ok()).flatten();
        let known = self.router.with_roster(|roster| match asked {
            Some(Errand::Standing) if roster.nodes.contains_key(&self.peer.node) => {
                Ok(standing(roster, &self.peer))
            }
            Some(_) | None => Err(stranger_words(roster, &self.peer)),
        });
        match known {
            Ok(standing) => answer(reply, &Errands::Standing(standing)),
            Err(why) => reply.refuse(why),
        }
    }

    fn closed(&mut self) {
        if let Some(inside) = &mut self.inside {
            inside.closed();
        }
    }
}

fn answer(reply: ReplyTo, told: &Errands) {
    match codec::encode(told) {
        Ok(bytes) => reply.send(Bytes::from(bytes)),
        Err(error) => reply.refuse(error.to_string()),
    }
}

impl Router {
    /// Looks at the roster as it is applied here.
    pub fn with_roster<T>(&self, look: impl FnOnce(&Roster) -> T) -> T {
        match self.place(ROSTER_SHARD) {
            Some(place) => look(place.replica.read().ledger.roster()),
            None => look(&Roster::default()),
        }
    }

    /// Says to a peer that is no member why it is not let in.
    pub fn stranger_words(&self, peer: &PeerId) -> String {
        self.with_roster(|roster| stranger_words(roster, peer))
    }

    /// Serves an errand of a member.
    pub(crate) fn attend(self: &Arc<Router>, body: &Bytes, reply: ReplyTo) {
        let errand: Errand = match codec::decode(body) {
            Ok(errand) => errand,
            Err(error) => return reply.refuse(error.to_string()),
        };
        let router = Arc::clone(self);
        runtime::spawn(async move {
            let told = router.run_errand(errand).await;
            answer(reply, &told);
        });
    }

    async fn run_errand(self: &Arc<Router>, errand: Errand) -> Errands {
        match errand {
            Errand::Report => Errands::Report(self.report()),
            Errand::HandOver { shard, to } => Errands::Done(self.hand_over_here(shard, to).await),
            Errand::Checkpoint { shard } => Errands::Done(self.checkpoint_here(shard).await),
            Errand::Dismiss { why } => {
                self.dismiss(why);
                Errands::Done(Ok("told".to_owned()))
            }
            Errand::Moved(member) => Errands::Done(self.move_seat(member).await),
            Errand::Standing => Errands::Standing(Standing::Member),
            Errand::Schema => Errands::Schema(self.reads_here()),
            Errand::Roster => Errands::Roster(Box::new(self.with_roster(Roster::clone))),
        }
    }

    async fn hand_over_here(&self, shard: ShardId, to: Option<NodeId>) -> Result<String, String> {
        let place = self.place(shard).ok_or("there is no such shard")?;
        if place.fence.leadership().is_none() {
            return Err(format!("this node does not lead shard {shard} any more: ask again"));
        }
        place.hand_over(self.own(), to, place.group.heartbeat()).await?;
        Ok(format!("node {} handed shard {shard} over", self.own()))
    }

    async fn checkpoint_here(&self, shard: ShardId) -> Result<String, String> {
        let place = self.place(shard).ok_or("there is no such shard")?;
        let made = place.group.checkpoint().await.map_err(|error| error.to_string())?;
        Ok(format!("a checkpoint of shard {shard} at index {}", made.index))
    }

    /// Tells how the replicas of this node are.
    pub fn report(&self) -> NodeReport {
        let places = self.places().iter();
        NodeReport {
            stands: places.clone().all(|place| place.group.is_electable()),
            shards: places
                .map(|place| {
                    let membership = place.group.membership();
                    let state = place.group.state();
                    let checkpoint = place.group.checkpoints().current();
                    let checkpoint = checkpoint.and_then(|(_, header)| header.state.position);
                    ReplicaReport {
                        shard: place.door.shard,
                        leads: place.fence.may_propose().ok(),
                        settled: membership.committed,
                        members: membership.members.keys().copied().collect(),
                        voters: membership.voters,
                        last_log: state.last_log,
                        committed: place.group.committed(),
                        applied: place
                            .replica
                            .read()
                            .applied
                            .map(|at| at.index)
                            .unwrap_or_default(),
                        checkpoint: checkpoint.map(|at| at.index).unwrap_or_default(),
                    }
                })
                .collect(),
        }
    }

    /// Sends an errand to a node and waits for what comes of it.
    pub(crate) async fn send_errand(
        self: &Arc<Router>,
        to: &MemberSpec,
        errand: Errand,
        deadline: Instant,
    ) -> Result<Errands, String> {
        if to.node == self.own() {
            return Ok(self.run_errand(errand).await);
        }
        let body = codec::encode(&errand).map_err(|error| error.to_string())?;
        let sent = self.link(to).send(ERRAND_FRAME, Bytes::from(body), deadline);
        let answer = sent.await.map_err(|error| error.to_string())?;
        codec::decode(&answer).map_err(|error| error.to_string())
    }

    /// Sends the same errand to many nodes at once, and returns what each answered that `take`
    /// takes.
    async fn ask_all<T>(
        self: &Arc<Router>,
        to: impl IntoIterator<Item = MemberSpec>,
        errand: Errand,
        take: fn(Errands) -> Option<T>,
    ) -> BTreeMap<NodeId, T> {
        let asked = to.into_iter().map(|member| {
            let errand = errand.clone();
            async move {
                let deadline = runtime::now() + REPORT_MAX;
                let told = self.send_errand(&member, errand, deadline).await.ok()?;
                Some((member.node, take(told)?))
            }
        });
        futures_util::future::join_all(asked).await.into_iter().flatten().collect()
    }

    async fn ask_reports(
        self: &Arc<Router>,
        of: impl IntoIterator<Item = MemberSpec>,
    ) -> BTreeMap<NodeId, NodeReport> {
        let report = |told| if let Errands::Report(report) = told { Some(report) } else { None };
        self.ask_all(of, Errand::Report, report).await
    }

    fn others(&self) -> impl Iterator<Item = MemberSpec> + use<> {
        let own = self.own();
        self.members().into_iter().filter(move |member| member.node != own)
    }

    /// Asks every node of a roster how its replicas are.
    pub async fn look_at(self: &Arc<Router>, roster: Roster) -> Sight {
        let told = self.ask_reports(present(&roster)).await;
        let (schema, reads) = (self.schema_here().0, BTreeMap::new());
        Sight { roster, shards: self.shard_count(), told, schema, reads }
    }

    /// Asks every member whether it leads a shard, and returns the one that says so, its quorum
    /// fresh, of the newest leadership.
    pub(crate) async fn leader_by_its_own_word(
        self: &Arc<Router>,
        shard: ShardId,
    ) -> Option<NodeId> {
        let told = self.ask_reports(self.members()).await;
        let sight = Sight { told, ..Sight::default() };
        sight.leader(shard).map(|(node, _)| node)
    }

    /// Asks every node of a roster which schema versions it reads.
    pub(crate) async fn ask_schemas(
        self: &Arc<Router>,
        roster: &Roster,
    ) -> BTreeMap<NodeId, SchemaRange> {
        let reads = |told| if let Errands::Schema(reads) = told { Some(reads) } else { None };
        self.ask_all(present(roster), Errand::Schema, reads).await
    }

    /// Tells a node that it was removed.
    ///
    /// # Errors
    ///
    /// Words, when it did not answer.
    pub async fn tell_removed(self: &Arc<Router>, member: &MemberSpec) -> Result<(), String> {
        let why = removed_words(member.node);
        let deadline = runtime::now() + REPORT_MAX;
        self.send_errand(member, Errand::Dismiss { why }, deadline).await.map(|_| ())
    }

    /// Writes the new addresses of a member into the roster.
    async fn move_seat(self: &Arc<Router>, member: MemberSpec) -> Result<String, String> {
        let deadline = runtime::now() + MOVE_MAX;
        let (mut roster, _) = self.read_roster(deadline).await?;
        let seat = roster.nodes.get_mut(&member.node).ok_or("the roster has no such node")?;
        if crate::shard::uuid_hex(&seat.log_uuid) != member.log_uuid {
            return Err("the roster has another log for that node".to_owned());
        }
        if (&seat.peer_addr, &seat.http_addr) != (&member.peer_addr, &member.http_addr) {
            seat.peer_addr = member.peer_addr;
            seat.http_addr = member.http_addr;
            match self.set_roster(roster, None, deadline).await {
                Ok(true) => {}
                Ok(false) => return Err("another change came first".to_owned()),
                Err(why) => return Err(why.to_string()),
            }
        }
        Ok("moved".to_owned())
    }

    /// Tells the cluster where this node is now, by way of any member that answers.
    ///
    /// # Errors
    ///
    /// Words, when nobody could write it down.
    pub async fn tell_moved(self: &Arc<Router>, own: MemberSpec) -> Result<(), String> {
        // It may lead the roster's shard itself: then no other member reaches that leader.
        let mut last = match self.move_seat(own.clone()).await {
            Ok(_) => return Ok(()),
            Err(why) => why,
        };
        for member in self.others() {
            let deadline = runtime::now() + MOVE_MAX;
            match self.send_errand(&member, Errand::Moved(own.clone()), deadline).await {
                Ok(Errands::Done(Ok(_))) => return Ok(()),
                Ok(Errands::Done(Err(why))) | Err(why) => last = why,
                Ok(
                    Errands::Report(_)
                    | Errands::Standing(_)
                    | Errands::Schema(_)
                    | Errands::Roster(_),
                ) => {}
            }
        }
        Err(last)
    }

    /// Asks the other members how this node stands, and returns why its part has ended, if one of
    /// them knows.
    pub async fn ask_standing(self: &Arc<Router>) -> Option<String> {
        let ended = |told| {
            if let Errands::Standing(Standing::Ended(why)) = told { Some(why) } else { None }
        };
        let told = self.ask_all(self.others(), Errand::Standing, ended).await;
        told.into_values().next()
    }

    /// Asks the other members for the roster, and returns the newest that any has applied: what a
    /// member has applied is committed.
    pub async fn ask_roster(self: &Arc<Router>) -> Option<Roster> {
        let roster = |told| if let Errands::Roster(roster) = told { Some(*roster) } else { None };
        let told = self.ask_all(self.others(), Errand::Roster, roster).await;
        told.into_values().max_by_key(|roster| roster.revision)
    }
}

/// The nodes of a roster that are there.
fn present(roster: &Roster) -> impl Iterator<Item = MemberSpec> + '_ {
    roster.present().map(|(node, seat)| spec(node, seat))
}

/// A seat as the rest of the node knows a member.
pub fn spec(node: NodeId, seat: &crate::ledger::Seat) -> MemberSpec {
    MemberSpec {
        node,
        log_uuid: crate::shard::uuid_hex(&seat.log_uuid),
        peer_addr: seat.peer_addr.clone(),
        http_addr: seat.http_addr.clone(),
        region: seat.region.clone(),
    }
}

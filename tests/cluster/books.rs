//! What buyers were told, kept outside of the cluster, and a load that keeps such books.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::fleet::{Fleet, try_again};
use super::wire::{Answer, Caller, Sent};
use super::{Dice, pass};

/// How a hold stands, by the last thing that its buyer was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    Held,
    Sold,
    Released,
}

impl Ended {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Ended::Held => "held",
            Ended::Sold => "sold",
            Ended::Released => "released",
        }
    }
}

/// One acknowledged hold.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    pub(crate) id: String,
    pub(crate) buyer: String,
    pub(crate) state: Ended,
    /// Something was asked for afterwards, and never answered.
    pub(crate) open: Option<Ended>,
}

/// The books of all buyers.
#[derive(Debug, Default)]
pub(crate) struct Books {
    pub(crate) kept: Vec<Kept>,
    /// Buyers whose placement was never answered: at most one hold each.
    pub(crate) open: BTreeSet<String>,
    /// Buyers who were told no, and had no attempt before it that was not answered.
    pub(crate) refused: BTreeSet<String>,
    /// Problems by slug, over all answers.
    pub(crate) told: BTreeMap<String, u64>,
    /// The longest time between a request and its answer.
    pub(crate) longest: Duration,
    /// When each grant came.
    pub(crate) grants: Vec<Instant>,
}

/// A load of buyers under way.
#[derive(Debug)]
pub(crate) struct Buying {
    books: Arc<Mutex<Books>>,
    stop: Arc<AtomicBool>,
    granted: Arc<AtomicU64>,
    buyers: JoinSet<()>,
}

#[derive(Debug, Clone)]
struct Shop {
    item: String,
    nodes: Vec<SocketAddr>,
    books: Arc<Mutex<Books>>,
    stop: Arc<AtomicBool>,
    granted: Arc<AtomicU64>,
}

/// How long a buyer retries one thing.
const RETRY_FOR: Duration = Duration::from_secs(20);
/// The pause before a retry.
const RETRY_AFTER: Duration = Duration::from_millis(20);

impl Buying {
    /// Sets `tasks` buyers at a time going, over these nodes. Each buyer places one unit; of those
    /// who get it a third confirms, a third releases, and a third does nothing.
    pub(crate) fn start(item: &str, nodes: Vec<SocketAddr>, tasks: usize, seed: u64) -> Buying {
        let shop = Shop {
            item: item.to_owned(),
            nodes,
            books: Arc::default(),
            stop: Arc::default(),
            granted: Arc::default(),
        };
        let mut buyers = JoinSet::new();
        for task in 0..tasks {
            let dice = Dice(seed ^ ((task as u64) << 32));
            buyers.spawn(shop.clone().buy(task, dice));
        }
        Buying { books: shop.books, stop: shop.stop, granted: shop.granted, buyers }
    }

    /// How many holds were granted so far.
    pub(crate) fn granted(&self) -> u64 {
        self.granted.load(Ordering::Acquire)
    }

    /// Waits for so many grants more, and tells how long that took.
    pub(crate) async fn wait_grants(&self, more: u64) -> Duration {
        let from = Instant::now();
        let wanted = self.granted() + more;
        super::wait_for("buyers get units", super::SOON, async || {
            let granted = self.granted();
            if granted >= wanted { Ok(()) } else { Err(format!("{granted} of {wanted}")) }
        })
        .await;
        from.elapsed()
    }

    /// Lets every buyer finish what they have begun, and closes the books.
    pub(crate) async fn finish(mut self) -> Books {
        self.stop.store(true, Ordering::Release);
        while let Some(done) = self.buyers.join_next().await {
            done.expect("a buyer does not fall over");
        }
        std::mem::take(&mut *lock(&self.books))
    }
}

fn lock(books: &Mutex<Books>) -> std::sync::MutexGuard<'_, Books> {
    books.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shop {
    async fn buy(self, task: usize, mut dice: Dice) {
        let first = dice.below(self.nodes.len() as u64) as usize;
        let mut caller = Caller::new(self.nodes[first]);
        for n in 0.. {
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            let buyer = format!("b-{task}-{n}");
            let path = format!("/v1/items/{}/holds", self.item);
            let body = json!({"quantity": 1, "buyer": buyer});
            let (placed, was_unknown) =
                self.insist(&mut caller, &path, &buyer, &body, &mut dice).await;
            let Some(answer) = placed else {
                lock(&self.books).open.insert(buyer);
                continue;
            };
            if answer.status != 200 && answer.status != 201 {
                self.refused(buyer, was_unknown);
                pass(RETRY_AFTER).await;
                continue;
            }
            self.granted.fetch_add(1, Ordering::AcqRel);
            lock(&self.books).grants.push(Instant::now());
            let id = answer.text_of("id").to_owned();
            let mut kept = Kept { id, buyer, state: Ended::Held, open: None };
            self.go_on(&mut caller, &mut kept, &mut dice).await;
            lock(&self.books).kept.push(kept);
        }
    }

    /// A refusal of a retry does not speak for the first attempt.
    fn refused(&self, buyer: String, was_unknown: bool) {
        let mut books = lock(&self.books);
        let known = if was_unknown { &mut books.open } else { &mut books.refused };
        known.insert(buyer);
    }

    async fn go_on(&self, caller: &mut Caller, kept: &mut Kept, dice: &mut Dice) {
        let (verb, wanted) = match dice.below(3) {
            0 => return,
            1 => ("confirm", Ended::Sold),
            _ => ("release", Ended::Released),
        };
        let path = format!("/v1/holds/{}/{verb}", kept.id);
        let key = format!("{}-{verb}", kept.buyer);
        match self.insist(caller, &path, &key, &json!({}), dice).await {
            (Some(answer), _) if answer.status == 200 => {
                assert_eq!(answer.text_of("state"), wanted.word(), "{path}: {answer:?}");
                kept.state = wanted;
            }
            (Some(answer), _) => panic!("{path}: {answer:?}"),
            (None, _) => kept.open = Some(wanted),
        }
    }

    /// Asks until there is a definite answer, always with the same key, on whichever node answers.
    /// Tells also whether an attempt before it may have been done.
    async fn insist(
        &self,
        caller: &mut Caller,
        path: &str,
        key: &str,
        body: &Value,
        dice: &mut Dice,
    ) -> (Option<Answer>, bool) {
        let until = Instant::now() + RETRY_FOR;
        let mut was_unknown = false;
        while Instant::now() < until {
            let asked = Instant::now();
            let sent = caller.post(path, key, body).await;
            self.note(&sent, asked.elapsed());
            if !try_again(&sent) {
                let answer = sent.expect("what is lost is tried again");
                assert!(answer.status < 500, "{path}: {answer:?}");
                return (Some(answer), was_unknown);
            }
            was_unknown |= !matches!(&sent, Ok(answer) if answer.is_not_taken());
            let next = dice.below(self.nodes.len() as u64) as usize;
            caller.turn_to(self.nodes[next]);
            pass(RETRY_AFTER).await;
        }
        (None, was_unknown)
    }

    fn note(&self, sent: &Sent, took: Duration) {
        let mut books = lock(&self.books);
        books.longest = books.longest.max(took);
        let told = match sent {
            Ok(answer) if answer.status < 300 => "done".to_owned(),
            Ok(answer) if answer.status == 503 => {
                format!("{} {}", answer.slug(), answer.text_of("reason"))
            }
            Ok(answer) => answer.slug().to_owned(),
            Err(lost) => format!("lost: {lost:?}"),
        };
        *books.told.entry(told).or_default() += 1;
    }
}

impl Books {
    /// Holds the books against every running node's own replica: each acknowledged hold is there as
    /// its buyer was told, no buyer has two, and nobody has one who was told no.
    ///
    /// # Panics
    ///
    /// When they differ.
    pub(crate) async fn verify(&self, fleet: &Fleet, item: &str) {
        fleet.settle().await;
        fleet.audit(item).await;
        for node in fleet.running() {
            let holds = all_holds(fleet, node, item).await;
            let mut by_buyer: BTreeMap<&str, &Value> = BTreeMap::new();
            for hold in &holds {
                let buyer = hold["buyer"].as_str().unwrap_or_default();
                let twin = by_buyer.insert(buyer, hold);
                assert!(twin.is_none(), "node {node}: one key, two holds: {twin:?} and {hold}");
                assert!(!self.refused.contains(buyer), "node {node}: refused, yet {hold}");
            }
            for kept in &self.kept {
                let Some(hold) = by_buyer.remove(kept.buyer.as_str()) else {
                    panic!("node {node}: an acknowledged hold is gone: {kept:?}");
                };
                assert_eq!(hold["id"].as_str(), Some(kept.id.as_str()), "node {node}: {kept:?}");
                let state = hold["state"].as_str().unwrap_or_default();
                let may_be = kept.open.is_some_and(|open| open.word() == state);
                assert!(may_be || state == kept.state.word(), "node {node}: {kept:?} and {hold}");
            }
            for (buyer, hold) in by_buyer {
                assert!(self.open.contains(buyer), "node {node}: nobody asked for {hold}");
            }
        }
    }

    /// How long nothing was granted after a moment.
    pub(crate) fn outage_after(&self, moment: Instant) -> Duration {
        let next = self.grants.iter().filter(|at| **at > moment).min();
        next.map(|at| *at - moment).expect("there were grants after it")
    }
}

/// Reads all holds of an item from one node's own replica.
pub(crate) async fn all_holds(fleet: &Fleet, node: usize, item: &str) -> Vec<Value> {
    let first = format!("/v1/holds?item={item}&limit=1000&consistency=local");
    let (mut holds, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = fleet.read(node, &format!("{first}{cursor}")).await;
        assert_eq!(page.status, 200, "{page:?}");
        holds.extend(page.body["holds"].as_array().cloned().unwrap_or_default());
        match page.body["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return holds,
        }
    }
}

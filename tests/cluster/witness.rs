//! A unit that goes to and fro, and those who ask about it meanwhile: whoever is told something that
//! was true at no moment between question and answer has been answered from the past.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::fleet::try_again;
use super::pass;
use super::wire::{Answer, Caller};

/// How long the unit stays where it is.
const DWELL: Duration = Duration::from_millis(25);
/// How long one move may take, with its retries.
const MOVE_WITHIN: Duration = Duration::from_secs(20);

/// Where the unit is, with a count of moves in the upper bits.
const MOVING: u64 = 0;
const FREE: u64 = 1;
const TAKEN: u64 = 2;
const COUNT: u64 = 4;

/// What the askers were told.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Told {
    /// Definite answers while the unit stayed free.
    pub(crate) free: u64,
    /// Definite answers while it stayed taken.
    pub(crate) taken: u64,
    /// "Not now", and answers that never came.
    pub(crate) indefinite: u64,
    /// The longest time without a move.
    pub(crate) longest_pause: Duration,
}

#[derive(Debug)]
struct Shared {
    item: String,
    place: AtomicU64,
    hold: Mutex<String>,
    stop: AtomicBool,
    told: Mutex<Told>,
    moves: AtomicU64,
}

/// The unit and its askers, under way.
#[derive(Debug)]
pub(crate) struct Witness {
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
}

impl Witness {
    /// Sets it going, with an item of one unit: moved through `movers`, asked about at `asked`.
    pub(crate) fn start(item: &str, movers: Vec<SocketAddr>, asked: &[SocketAddr]) -> Witness {
        let shared = Arc::new(Shared {
            item: item.to_owned(),
            place: AtomicU64::new(MOVING),
            hold: Mutex::default(),
            stop: AtomicBool::new(false),
            told: Mutex::default(),
            moves: AtomicU64::new(0),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&shared).shift(movers));
        for (at, node) in asked.iter().enumerate() {
            tasks.spawn(Arc::clone(&shared).ask(at, *node));
        }
        Witness { shared, tasks }
    }

    /// How often the unit was moved.
    pub(crate) fn moves(&self) -> u64 {
        self.shared.moves.load(Ordering::Acquire)
    }

    /// Waits for so many moves more.
    pub(crate) async fn wait_moves(&self, more: u64) {
        let wanted = self.moves() + more;
        super::wait_for("the unit moves", super::SOON, async || {
            if self.moves() >= wanted { Ok(()) } else { Err(format!("{} moves", self.moves())) }
        })
        .await;
    }

    /// Stops it.
    ///
    /// # Panics
    ///
    /// When an answer came from the past.
    pub(crate) async fn finish(mut self) -> Told {
        self.shared.stop.store(true, Ordering::Release);
        while let Some(done) = self.tasks.join_next().await {
            done.expect("nobody was answered from the past");
        }
        *self.shared.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    async fn shift(self: Arc<Shared>, nodes: Vec<SocketAddr>) {
        let mut caller = Caller::new(nodes[0]);
        let mut last = Instant::now();
        for n in 1.. {
            if self.is_over() {
                return;
            }
            let path = format!("/v1/items/{}/holds", self.item);
            let body = json!({"quantity": 1, "buyer": "mover"});
            let key = format!("move-{n}");
            let held = insist(&mut caller, &nodes, &path, &key, &body).await;
            assert!(held.status == 200 || held.status == 201, "the mover got {held:?}");
            let id = held.text_of("id").to_owned();
            self.hold.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&id);
            self.stay(n * COUNT + TAKEN, &mut last).await;
            let path = format!("/v1/holds/{id}/release");
            let freed = insist(&mut caller, &nodes, &path, &key, &json!({})).await;
            assert_eq!(freed.text_of("state"), "released", "the mover got {freed:?}");
            self.stay(n * COUNT + FREE, &mut last).await;
        }
    }

    async fn stay(&self, place: u64, last: &mut Instant) {
        self.place.store(place, Ordering::SeqCst);
        self.moves.fetch_add(1, Ordering::AcqRel);
        {
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            told.longest_pause = told.longest_pause.max(last.elapsed());
        }
        pass(DWELL).await;
        *last = Instant::now();
        self.place.store(MOVING, Ordering::SeqCst);
    }

    async fn ask(self: Arc<Shared>, asker: usize, node: SocketAddr) {
        let mut caller = Caller::new(node);
        for n in 0.. {
            if self.is_over() {
                return;
            }
            let before = self.place.load(Ordering::SeqCst);
            let hold = self.hold.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let (what, seen) = self.ask_once(&mut caller, asker, n, &hold).await;
            let after = self.place.load(Ordering::SeqCst);
            self.note(node, before, after, &what, seen);
            if !caller.is_connected() {
                pass(DWELL).await;
            }
        }
    }

    fn note(&self, node: SocketAddr, before: u64, after: u64, what: &str, seen: Option<bool>) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        match seen {
            None => told.indefinite += 1,
            Some(_) if before != after || before == MOVING => {}
            Some(free) => {
                assert_eq!(free, before % COUNT == FREE, "{node} says from the past: {what}");
                if free {
                    told.free += 1;
                } else {
                    told.taken += 1;
                }
            }
        }
    }

    /// Asks one question of several kinds, and tells whether the unit is free by the answer.
    async fn ask_once(
        &self,
        caller: &mut Caller,
        asker: usize,
        n: u64,
        hold: &str,
    ) -> (String, Option<bool>) {
        let item = &self.item;
        let sent = match n % 3 {
            // Two of one: always refused, and how it is refused tells where the unit is.
            0 => {
                let body = json!({"quantity": 2, "buyer": "asker"});
                let key = format!("asker-{asker}-{n}");
                caller.post(&format!("/v1/items/{item}/holds"), &key, &body).await
            }
            1 => {
                let path = format!("/v1/items/{item}/availability?consistency=leader");
                caller.get(&path).await
            }
            _ => caller.get(&format!("/v1/holds/{hold}")).await,
        };
        let Ok(answer) = sent else { return (format!("{sent:?}"), None) };
        let what = format!("{answer:?}");
        let free = match (n % 3, answer.status, answer.slug()) {
            (0, 409, "sold-out") => Some(false),
            (0, 409, "insufficient-stock") => Some(true),
            (1, 200, _) => Some(answer.number_of("available") == 1),
            (2, 200, _) => Some(answer.text_of("state") != "held"),
            (2, 404, _) if hold.is_empty() => None,
            (_, 503 | 504, _) => None,
            _ => panic!("an unexpected answer: {what}"),
        };
        (what, free)
    }
}

/// Asks with one key until there is a definite answer.
async fn insist(
    caller: &mut Caller,
    nodes: &[SocketAddr],
    path: &str,
    key: &str,
    body: &Value,
) -> Answer {
    let until = Instant::now() + MOVE_WITHIN;
    let mut tries = 0_usize;
    loop {
        let sent = caller.post(path, key, body).await;
        if !try_again(&sent) {
            return sent.expect("what is lost is tried again");
        }
        assert!(Instant::now() < until, "{path} is never answered: {sent:?}");
        tries += 1;
        caller.turn_to(nodes[tries % nodes.len()]);
        pass(Duration::from_millis(10)).await;
    }
}

//! The demo's sale: more buyers than units; some pay, some give back, some walk away, some retry,
//! and the leader is killed half-way.
//!
//! It keeps books of its own from what it was answered, so that the audit has something to be
//! compared with.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use http::Method;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::super::bench::record;
use super::super::local_cluster::LocalCluster;
use super::super::progress::{bar, spinner};
use super::super::{Failure, Reach, audit};
use crate::client::{Changed, Client, NewHold, Placing, Step, path_segment};
use crate::runtime::{Instant, now, sleep, spawn};

/// Buyers who ask at the same time.
const AT_ONCE: usize = 64;
/// Lifetime of a hold, in ms: short, so that what was walked away from comes back in the demo.
const TTL_MS: u64 = 2_000;
/// How long one operation may take; longer than a failover.
const OPERATION_WITHIN: Duration = Duration::from_secs(20);
/// How long the last units may take to come back and be sold.
const TAIL_WITHIN: Duration = Duration::from_secs(30);
/// The pause before a look at stock that is coming back.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// One sale.
pub(super) struct Sale {
    client: Client,
    buyers: u32,
    units: u32,
    item: String,
    books: Mutex<Books>,
}

/// What the buyers were answered.
#[derive(Debug)]
pub(super) struct Books {
    pub(super) placed: u64,
    pub(super) confirmed: BTreeSet<String>,
    pub(super) released: u64,
    pub(super) walked_away: u64,
    pub(super) retried: u64,
    pub(super) refused: BTreeMap<String, u64>,
    pub(super) gave_up: u64,
    pub(super) unknown: u64,
    pub(super) faults: Vec<String>,
    /// Time of a placement, in µs.
    pub(super) placing_us: Histogram<u64>,
    first_grant_after: Option<(Instant, Option<Instant>)>,
}

impl Books {
    fn new() -> Books {
        Books {
            placed: 0,
            confirmed: BTreeSet::new(),
            released: 0,
            walked_away: 0,
            retried: 0,
            refused: BTreeMap::new(),
            gave_up: 0,
            unknown: 0,
            faults: Vec::new(),
            placing_us: Histogram::new(3).expect("3 significant figures are allowed"),
            first_grant_after: None,
        }
    }
}

/// What came of it.
pub(super) struct Told {
    pub(super) item: String,
    pub(super) buyers: u32,
    pub(super) units: u32,
    pub(super) books: Books,
    pub(super) took: Duration,
    pub(super) killed: Option<u64>,
    pub(super) gap: Option<Duration>,
}

/// What a buyer does with a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Habit {
    Pays,
    GivesBack,
    WalksAway,
}

/// Seven of ten pay, two give back, one walks away.
fn habit_of(buyer: u32) -> Habit {
    match buyer % 10 {
        0..=6 => Habit::Pays,
        7 | 8 => Habit::GivesBack,
        _ => Habit::WalksAway,
    }
}

impl Sale {
    pub(super) fn new(client: Client, buyers: u32, units: u32) -> Sale {
        let item = format!("last-tickets-{:04x}", rand::random::<u16>());
        Sale { client, buyers, units, item, books: Mutex::new(Books::new()) }
    }

    /// Runs the sale; with `kill`, the leader of the item's shard is killed half-way.
    pub(super) async fn run(
        self,
        cluster: &mut LocalCluster,
        reach: &Reach,
        kill: bool,
    ) -> Result<Told, Failure> {
        let begun = now();
        let leader = self.open().await?;
        let sale = Arc::new(self);
        let half = (sale.units / 2).min(sale.buyers);
        sale.clone().buyers_come(0..half, false).await;
        let mut killed = None;
        if let (true, Some(leader)) = (kill, leader) {
            sale.books.lock().first_grant_after = Some((now(), None));
            cluster
                .kill(usize::try_from(leader).unwrap_or(usize::MAX).min(*cluster.ids().end()))?;
            killed = Some(leader);
        }
        sale.clone().buyers_come(half..sale.buyers, false).await;
        sale.clone().tail().await?;
        if let Some(leader) = killed {
            let id = usize::try_from(leader).unwrap_or(usize::MAX).min(*cluster.ids().end());
            cluster.start_node(id)?;
            cluster.wait_until_up(id, reach).await?;
        }
        let took = now() - begun;
        let books = std::mem::replace(&mut *sale.books.lock(), Books::new());
        let gap = books.first_grant_after.and_then(|(killed, next)| Some(next? - killed));
        let (item, buyers, units) = (sale.item.clone(), sale.buyers, sale.units);
        Ok(Told { item, buyers, units, books, took, killed, gap })
    }

    /// Creates the item and returns the node that leads its shard.
    async fn open(&self) -> Result<Option<u64>, Failure> {
        let path = format!("/v1/items/{}", path_segment(&self.item));
        let body = json!({
            "total": self.units,
            "limit_per_buyer": 1,
            "hold": {
                "ttl_ms": TTL_MS,
                "max_ttl_ms": TTL_MS,
                "max_extends": 1,
                "max_lifetime_ms": 2 * TTL_MS,
            },
        });
        let key = self.client.fresh_key();
        let deadline = self.client.deadline();
        let made = self.client.send(Method::PUT, &path, Some(&body), Some(&key), deadline).await?;
        Ok(made.commit.as_deref().and_then(leader_of_commit))
    }

    /// Lets these buyers come, so many at once.
    async fn buyers_come(self: Arc<Self>, buyers: std::ops::Range<u32>, all_pay: bool) {
        let words = if all_pay { "the last units" } else { "buyers" };
        let shown = bar(u64::from(buyers.end - buyers.start), words);
        let (first, count) = (buyers.start, (buyers.end - buyers.start) as usize);
        let next = Arc::new(AtomicUsize::new(0));
        let mut tasks = Vec::new();
        for _ in 0..AT_ONCE.min(count) {
            let (sale, next, shown) = (self.clone(), next.clone(), shown.clone());
            tasks.push(spawn(async move {
                loop {
                    let turn = next.fetch_add(1, Ordering::Relaxed);
                    if turn >= count {
                        break;
                    }
                    let buyer = first + u32::try_from(turn).expect("fewer than the buyers, a u32");
                    let habit = if all_pay { Habit::Pays } else { habit_of(buyer) };
                    sale.buy(buyer, habit).await;
                    shown.inc(1);
                }
            }));
        }
        for task in tasks {
            if task.await.is_err() {
                self.books.lock().faults.push("a buyer's task panicked".into());
            }
        }
        shown.finish_and_clear();
    }

    async fn buy(&self, buyer: u32, habit: Habit) {
        let new = NewHold::new(1, format!("buyer-{buyer}"));
        let key = self.client.fresh_key();
        let begun = now();
        let placing = self.client.place(&self.item, &new, &key, begun + OPERATION_WITHIN).await;
        let hold = match placing {
            Placing::Placed { hold, .. } => hold,
            Placing::Refused(problem) => {
                let mut books = self.books.lock();
                note_time(&mut books, begun);
                *books.refused.entry(problem.slug).or_default() += 1;
                return;
            }
            Placing::GaveUp { .. } => {
                self.books.lock().gave_up += 1;
                return;
            }
            Placing::Unresolved { .. } => {
                self.books.lock().unknown += 1;
                return;
            }
            Placing::Invalid(words) => {
                self.books.lock().faults.push(words);
                return;
            }
        };
        {
            let mut books = self.books.lock();
            note_time(&mut books, begun);
            books.placed += 1;
            if let Some((killed, next @ None)) = &mut books.first_grant_after {
                *next = Some(now().max(*killed));
            }
        }
        if buyer.is_multiple_of(4) {
            self.retry(&new, &key, &hold.id).await;
        }
        self.act(habit, &hold.id).await;
    }

    /// Sends the same key once more, as a client does whose answer was lost.
    async fn retry(&self, new: &NewHold, key: &str, id: &str) {
        let again = self.client.place(&self.item, new, key, now() + OPERATION_WITHIN).await;
        let mut books = self.books.lock();
        books.retried += 1;
        match again {
            Placing::Placed { hold, .. } if hold.id == id => {}
            Placing::Placed { hold, .. } => {
                books.faults.push(format!("one key made two holds: {id} and {}", hold.id));
            }
            // The hold may have ended while the retry was on its way, or time ran out.
            Placing::Refused(_) | Placing::GaveUp { .. } | Placing::Unresolved { .. } => {}
            Placing::Invalid(words) => books.faults.push(words),
        }
    }

    async fn act(&self, habit: Habit, id: &str) {
        let step = match habit {
            Habit::Pays => Step::Confirm { quantity: None, reacquire: false, reference: None },
            Habit::GivesBack => Step::Release { reason: None },
            Habit::WalksAway => {
                self.books.lock().walked_away += 1;
                return;
            }
        };
        let key = self.client.fresh_key();
        let changed = self.client.change(id, &step, &key, now() + OPERATION_WITHIN).await;
        let mut books = self.books.lock();
        match (changed, habit) {
            (Changed::Done { .. }, Habit::Pays) => {
                books.confirmed.insert(id.to_owned());
            }
            (Changed::Done { .. }, Habit::GivesBack | Habit::WalksAway) => books.released += 1,
            (Changed::Refused(problem), _) => *books.refused.entry(problem.slug).or_default() += 1,
            (Changed::Unavailable(_), _) => books.gave_up += 1,
            (Changed::Unresolved { .. }, _) => books.unknown += 1,
            (Changed::Invalid(words), _) => books.faults.push(words),
        }
    }

    /// Sells what comes back, until nothing is left.
    async fn tail(self: Arc<Self>) -> Result<(), Failure> {
        let shown = spinner("selling what was walked away from");
        let until = now() + TAIL_WITHIN;
        let mut newcomer = self.buyers;
        while now() < until {
            let audit = audit::read(&self.client, &self.item).await?;
            let left = u64::from(self.units).saturating_sub(audit::sum(&audit, "sold"));
            if left == 0 {
                break;
            }
            let path = format!(
                "/v1/items/{}/availability?consistency=linearizable",
                path_segment(&self.item)
            );
            let stock = self.client.get(&path).await?.body;
            let available = audit::sum(&stock, "available").min(left);
            if available == 0 {
                sleep(LOOK_AGAIN).await;
                continue;
            }
            let come = u32::try_from(available).unwrap_or(self.units);
            let next = newcomer.saturating_add(come);
            self.clone().buyers_come(newcomer..next, true).await;
            newcomer = next;
        }
        shown.finish_and_clear();
        Ok(())
    }
}

fn note_time(books: &mut Books, begun: Instant) {
    record(&mut books.placing_us, now() - begun);
}

/// Reads the leading node of `shard:term.node:index`.
pub(in crate::cli) fn leader_of_commit(commit: &str) -> Option<u64> {
    let leadership = commit.split(':').nth(1)?;
    leadership.split_once('.')?.1.parse().ok()
}

impl Told {
    /// Everything that is wrong, from the books and the audit.
    pub(super) fn faults(&self, audited: &Value) -> Vec<String> {
        let mut faults = self.books.faults.clone();
        if !audit::holds(audited) {
            faults.push("A LAW IS BROKEN: the sums of the audit do not hold".into());
        }
        let (held, sold) = (audit::sum(audited, "held"), audit::sum(audited, "sold"));
        if held + sold > u64::from(self.units) {
            faults.push(format!("OVERSOLD: {held} held and {sold} sold of {}", self.units));
        }
        let acknowledged = self.books.confirmed.len() as u64;
        if sold < acknowledged || sold > acknowledged + self.books.unknown {
            faults.push(format!(
                "{acknowledged} sales were acknowledged and {} are unknown, but {sold} units are \
                 sold",
                self.books.unknown
            ));
        }
        faults
    }

    /// The sale for programs.
    pub(super) fn to_json(&self) -> Value {
        let books = &self.books;
        let ms = |quantile: f64| books.placing_us.value_at_quantile(quantile) as f64 / 1_000.0;
        json!({
            "item": self.item,
            "buyers": self.buyers,
            "units": self.units,
            "took_ms": u64::try_from(self.took.as_millis()).unwrap_or(u64::MAX),
            "placed": books.placed,
            "confirmed": books.confirmed.len(),
            "released": books.released,
            "walked_away": books.walked_away,
            "retried": books.retried,
            "refused": books.refused,
            "gave_up": books.gave_up,
            "unknown": books.unknown,
            "placing_ms": {
                "p50": ms(0.5),
                "p99": ms(0.99),
                "max": books.placing_us.max() as f64 / 1_000.0,
            },
            "killed_node": self.killed,
            "failover_ms": self.gap.map(|gap| gap.as_millis()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(confirmed: u64, unknown: u64) -> Told {
        let mut books = Books::new();
        books.confirmed = (0..confirmed).map(|n| format!("hld_{n}")).collect();
        books.unknown = unknown;
        Told {
            item: "x".into(),
            buyers: 10,
            units: 3,
            books,
            took: Duration::ZERO,
            killed: None,
            gap: None,
        }
    }

    #[test]
    fn the_leader_is_read_from_a_commit() {
        assert_eq!(leader_of_commit("3:7.2:81244"), Some(2));
        for bad in ["", "3", "3:7:1", "3:7.x:1"] {
            assert_eq!(leader_of_commit(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_sale_that_was_acknowledged_and_is_not_sold_is_a_fault() {
        let audit = |sold: u64| json!({"conserved": true, "held": 0, "sold": sold});
        assert!(told(3, 0).faults(&audit(3)).is_empty());
        assert!(told(2, 1).faults(&audit(3)).is_empty());
        assert!(!told(3, 0).faults(&audit(2)).is_empty());
        assert!(!told(2, 0).faults(&audit(3)).is_empty());
    }

    #[test]
    fn one_unit_too_many_or_a_broken_sum_is_a_fault() {
        let oversold = json!({"conserved": true, "held": 1, "sold": 3});
        assert!(told(3, 0).faults(&oversold).iter().any(|fault| fault.starts_with("OVERSOLD")));
        let broken = json!({"conserved": false, "held": 0, "sold": 3});
        assert!(told(3, 0).faults(&broken).iter().any(|fault| fault.contains("LAW")));
    }
}

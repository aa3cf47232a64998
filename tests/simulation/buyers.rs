//! The clients: each decides one thing after another, sends it to any node, and sends it again
//! under the same key until it knows what came of it.

use std::sync::Arc;
use std::time::Duration;

use holdfast::api::{Hold, HoldState};
use holdfast::runtime;
use parking_lot::Mutex;
use rand::RngExt as _;
use rand::rngs::SmallRng;
use serde_json::json;

use super::books::{Books, HoldBook, hold_of, moment};
use super::call::{Answer, Ask, Told};
use super::judge::parsed;
use super::plan::{ItemPlan, NODES, decision_stream, stream};
use super::world::World;

/// How often a decision is sent before its client gives up on it.
const TRIES: u32 = 8;

/// One client.
pub(crate) struct Client {
    pub(super) world: Arc<World>,
    pub(super) books: Arc<Mutex<Books>>,
    number: u64,
    /// The randomness of the present decision.
    pub(super) rng: SmallRng,
    decision: u32,
    made: u64,
}

/// What became of a decision.
pub(super) enum Outcome {
    /// An answer that ends it, and whether an earlier attempt may still change something.
    Answer(Answer, bool),
    /// No attempt was ever answered for certain.
    Unknown,
    /// Every attempt was certainly not taken.
    NotTaken,
}

/// Which way a hold is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Confirm { reacquire: bool, fewer: bool },
    Release,
    Return,
    Extend,
}

/// Names the buyer's region in a request.
pub(super) fn in_region(item: &ItemPlan, buyer: &str, body: &mut serde_json::Value) {
    if let Some(region) = item.region_of(buyer) {
        body["region"] = json!(region);
    }
}

impl Client {
    pub(crate) fn new(world: &Arc<World>, books: &Arc<Mutex<Books>>, number: u64) -> Client {
        let rng = stream(world.plan.seed, 100 + number);
        let (world, books) = (Arc::clone(world), Arc::clone(books));
        Client { world, books, number, rng, decision: 0, made: 0 }
    }

    /// Works until the clients together have done what the plan wants. Each decision is drawn from
    /// randomness of its own, whichever client makes it.
    pub(crate) async fn run(mut self) {
        while let Some(number) = self.world.next_decision() {
            self.begin_decision(number);
            let is_operator = self.rng.random_range(0..100) < self.world.plan.operators;
            if is_operator {
                self.operate().await;
            } else {
                self.trade().await;
            }
            // When only faults are waited for, nobody hurries.
            let think = match self.world.has_calls() {
                true => self.world.plan.think.max(Duration::from_millis(200)),
                false => self.world.plan.think,
            };
            let think = u64::try_from(think.as_micros()).unwrap_or(0);
            let pause = self.rng.random_range(0..=think);
            runtime::sleep(Duration::from_micros(pause)).await;
        }
    }

    fn begin_decision(&mut self, number: u32) {
        (self.decision, self.made) = (number, 0);
        self.rng = decision_stream(self.world.plan.seed ^ self.world.plan.salt << 40, number);
    }

    async fn trade(&mut self) {
        match self.rng.random_range(0..100) {
            0..66 => self.buy().await,
            66..72 => self.buy_together().await,
            72..78 => self.ask_receipt().await,
            _ => self.look().await,
        }
    }

    pub(super) fn note(&self, checked: Result<(), String>) {
        if let Err(law) = checked {
            self.world.broken(law);
        }
    }

    pub(super) fn any_node(&mut self) -> usize {
        self.rng.random_range(0..NODES)
    }

    pub(super) fn fresh_key(&mut self) -> String {
        self.made += 1;
        format!("d{}-{}-{}", self.decision, self.number, self.made)
    }

    async fn rest(&mut self, attempt: u32) {
        let ms = self.rng.random_range(5..40_u64 << attempt.min(4));
        runtime::sleep(Duration::from_millis(ms)).await;
    }

    /// Sends the same thing to any node until an answer ends it. `hear` is told of each attempt.
    pub(super) async fn insist(&mut self, ask: &Ask) -> Outcome {
        let mut unknown = false;
        for attempt in 0..TRIES {
            let node = self.any_node();
            match self.world.call(node, ask.clone()).await {
                Told::Refused => {}
                Told::Lost => unknown = true,
                Told::Answer(answer) if answer.status == 503 => {}
                Told::Answer(answer) if !answer.is_definite() => unknown = true,
                Told::Answer(answer) => return Outcome::Answer(answer, unknown),
            }
            self.rest(attempt).await;
        }
        if unknown { Outcome::Unknown } else { Outcome::NotTaken }
    }

    /// Places a hold and sees it to its end, or not.
    async fn buy(&mut self) {
        let item = self.rng.random_range(0..self.world.plan.items.len());
        let buyer = format!("b{}", self.rng.random_range(0..self.world.plan.buyers));
        let quantity = if self.rng.random_ratio(2, 3) { 1 } else { self.rng.random_range(1..=4) };
        let key = self.fresh_key();
        self.books.lock().open_key(&key, item, &buyer, quantity);
        let ask = self.place_ask(item, &key, &buyer, quantity);
        if self.rng.random_ratio(1, 10) {
            self.echo(&key, &ask);
        }
        let Some(hold) = self.place(&key, &ask).await else { return };
        self.live(item, hold).await;
    }

    fn place_ask(&mut self, item: usize, key: &str, buyer: &str, quantity: u64) -> Ask {
        let plan = &self.world.plan.items[item];
        let mut body = json!({"quantity": quantity, "buyer": buyer, "reference": key});
        in_region(plan, buyer, &mut body);
        let mut ask = Ask::post(format!("/v1/items/{}/holds", plan.name), key, body);
        ask.deadline_ms = if self.rng.random_ratio(1, 8) { 60 } else { 2_000 };
        ask
    }

    /// Sends a second copy of a placement at the same time, to another node.
    fn echo(&mut self, key: &str, ask: &Ask) {
        let (world, books) = (Arc::clone(&self.world), Arc::clone(&self.books));
        let (node, key, ask) = (self.any_node(), key.to_owned(), ask.clone());
        // It counts as unknown until its answer is read.
        {
            let mut books = books.lock();
            let book = books.keys.get_mut(&key).expect("opened");
            book.unknown += 1;
        }
        drop(runtime::life::spawn_in_the_world(async move {
            let sent = moment();
            let told = world.call(node, ask).await;
            if matches!(&told, Told::Lost) {
                return;
            }
            let mut books = books.lock();
            books.keys.get_mut(&key).expect("opened").unknown -= 1;
            let checked = books.place_told(&key, sent, &told);
            drop(books);
            if let Err(law) = checked {
                world.broken(law);
            }
        }));
    }

    /// Insists on a placement; gives up on it only by a void.
    async fn place(&mut self, key: &str, ask: &Ask) -> Option<Hold> {
        for attempt in 0..TRIES {
            let node = self.any_node();
            let sent = moment();
            let told = self.world.call(node, ask.clone()).await;
            let checked = self.books.lock().place_told(key, sent, &told);
            self.note(checked);
            match told {
                Told::Refused | Told::Lost => {}
                Told::Answer(answer) => match answer.status {
                    200 | 201 => return hold_of(&answer.body),
                    503 | 504 => {}
                    // A refusal of a retry does not speak for an earlier attempt.
                    _ if self.books.lock().keys[key].unknown > 0 => break,
                    _ => return None,
                },
            }
            self.rest(attempt).await;
        }
        if self.books.lock().keys[key].unknown > 0 && self.rng.random_ratio(3, 4) {
            self.void(key).await;
        }
        None
    }

    async fn void(&mut self, key: &str) {
        let (item, buyer) = {
            let mut books = self.books.lock();
            let book = books.keys.get_mut(key).expect("opened");
            book.void_sent = true;
            (book.item, book.buyer.clone())
        };
        let plan = &self.world.plan.items[item];
        let mut body = json!({"item": plan.name, "buyer": buyer});
        in_region(plan, &buyer, &mut body);
        let ask = Ask::post(format!("/v1/receipts/{key}/void"), key, body);
        let sent = moment();
        let Outcome::Answer(answer, _) = self.insist(&ask).await else { return };
        if answer.status == 200 {
            let checked = self.hear_receipt(key, sent, &answer, true);
            self.note(checked);
        }
    }

    fn hear_receipt(
        &self,
        key: &str,
        sent: u64,
        answer: &Answer,
        is_void: bool,
    ) -> Result<(), String> {
        let receipt: holdfast::api::Receipt = parsed(answer)?;
        let mut books = self.books.lock();
        use holdfast::api::ReceiptState;
        match receipt.state {
            ReceiptState::Committed => {
                let hold = receipt.hold.ok_or("a committed receipt without its hold")?;
                books.see_hold(key, sent, &hold)
            }
            ReceiptState::Voided => {
                let book = books.keys.get_mut(key).expect("opened");
                if book.hold.is_some() {
                    return Err(format!("key {key} has a hold and is called voided"));
                }
                if !book.void_sent {
                    return Err(format!("key {key} is called voided and nobody voided it"));
                }
                book.voided.get_or_insert_with(moment);
                Ok(())
            }
            ReceiptState::InFlight if is_void => Err("a void is answered as in flight".to_owned()),
            ReceiptState::InFlight => Ok(()),
            ReceiptState::NotFound => Ok(()),
        }
    }

    /// What happens to a hold after it was granted.
    async fn live(&mut self, item: usize, hold: Hold) {
        let ttl = self.world.plan.items[item].ttl_ms;
        let longest = ttl.min(4_000) * 13 / 10;
        let wait = self.rng.random_range(0..=longest);
        runtime::sleep(Duration::from_millis(wait)).await;
        let fewer = self.rng.random_ratio(1, 6);
        let reacquire = self.rng.random_ratio(1, 3);
        match self.rng.random_range(0..10) {
            0..4 => self.step(&hold, Step::Confirm { reacquire, fewer }).await,
            4..6 => self.step(&hold, Step::Release).await,
            6 => {
                self.step(&hold, Step::Extend).await;
                self.step(&hold, Step::Confirm { reacquire: false, fewer }).await;
            }
            7 => self.both_ways(&hold).await,
            8 => {
                self.step(&hold, Step::Confirm { reacquire, fewer: false }).await;
                self.step(&hold, Step::Return).await;
            }
            _ => {}
        }
        self.read(&hold).await;
    }

    /// Confirms and releases at once: one of the two wins.
    async fn both_ways(&mut self, hold: &Hold) {
        let mut other = Client::new(&self.world, &self.books, self.number + 1_000);
        other.begin_decision(self.decision);
        let theirs = hold.clone();
        let racing = runtime::life::spawn_in_the_world(async move {
            other.step(&theirs, Step::Release).await;
        });
        self.step(hold, Step::Confirm { reacquire: false, fewer: false }).await;
        racing.await.ok();
    }

    async fn step(&mut self, hold: &Hold, step: Step) {
        let key = self.fresh_key();
        let fewer = self.rng.random_range(1..=hold.quantity);
        let (verb, body) = match step {
            Step::Confirm { reacquire, fewer: true } => {
                ("confirm", json!({"quantity": fewer, "reacquire": reacquire}))
            }
            Step::Confirm { reacquire, fewer: false } => {
                ("confirm", json!({"reacquire": reacquire}))
            }
            Step::Release => ("release", json!({})),
            Step::Return => ("return", json!({"quantity": fewer})),
            Step::Extend => ("extend", json!({})),
        };
        self.with_book(hold, |book| match step {
            Step::Confirm { reacquire, .. } => book.reacquire_sent |= reacquire,
            Step::Release | Step::Return | Step::Extend => {}
        });
        let ask = Ask::post(format!("/v1/holds/{}/{verb}", hold.id), &key, body);
        let sent = moment();
        let maybe = |book: &mut HoldBook| match step {
            Step::Confirm { .. } => book.confirm_maybe = true,
            Step::Release => book.release_maybe = true,
            Step::Return => book.return_maybe += fewer,
            Step::Extend => {}
        };
        match self.insist(&ask).await {
            Outcome::NotTaken => {}
            Outcome::Unknown => self.with_book(hold, maybe),
            Outcome::Answer(answer, unsure) => {
                // A refusal of a retry does not speak for an earlier attempt.
                if answer.status != 200 && unsure {
                    self.with_book(hold, maybe);
                }
                let checked = self.hear_step(hold, step, (sent, fewer), &answer);
                self.note(checked);
            }
        }
    }

    fn with_book(&self, hold: &Hold, change: impl FnOnce(&mut HoldBook)) {
        change(self.books.lock().holds.entry(hold.id.clone()).or_default());
    }

    fn hear_step(
        &self,
        hold: &Hold,
        step: Step,
        (sent, fewer): (u64, u64),
        answer: &Answer,
    ) -> Result<(), String> {
        if answer.status == 404 {
            return Err(format!("an acknowledged hold is lost: {} {step:?}", hold.id));
        }
        let key = hold.reference.clone().unwrap_or_default();
        let at = answer.commit.map(|commit| (commit.shard, commit.index));
        if answer.status != 200 {
            if let Some(seen) = answer.body.get("hold").and_then(hold_of) {
                self.books.lock().see_hold(&key, sent, &seen)?;
            }
            let plain = matches!(step, Step::Confirm { reacquire: false, .. });
            if answer.slug() == "hold-expired" && plain {
                self.with_book(hold, |book| book.refused_as_expired.extend(at));
            }
            return Ok(());
        }
        let seen = hold_of(&answer.body).ok_or_else(|| format!("no hold: {}", answer.body))?;
        let mut books = self.books.lock();
        let book = books.holds.entry(hold.id.clone()).or_default();
        match (step, seen.state) {
            (Step::Confirm { .. }, HoldState::Sold) => {
                if book.confirmed.is_none() {
                    (book.confirmed, book.confirmed_since) = (Some(seen.sold), moment());
                }
                if !answer.replayed && book.confirmed_at.is_none() {
                    book.confirmed_at = at;
                }
            }
            (Step::Release, HoldState::Released) => {
                (book.released, book.released_since) = (true, moment());
            }
            (Step::Return, HoldState::Sold | HoldState::Returned) => book.returned += fewer,
            (Step::Extend, HoldState::Held) => {}
            (Step::Confirm { .. }, HoldState::Returned) => {}
            (step, state) => {
                return Err(format!("{step:?} is answered 200 with {state:?}: {seen:?}"));
            }
        }
        if book.released && book.confirmed.is_some() {
            return Err(format!("a hold ended twice: {seen:?} {book:?}"));
        }
        books.see_hold(&key, sent, &seen)
    }

    /// Reads a hold where it must be found.
    async fn read(&mut self, hold: &Hold) {
        let node = self.any_node();
        let query = if self.rng.random_ratio(1, 2) { "" } else { "?consistency=linearizable" };
        let ask = Ask::get(format!("/v1/holds/{}{query}", hold.id));
        let sent = moment();
        let Told::Answer(answer) = self.world.call(node, ask).await else { return };
        let key = hold.reference.clone().unwrap_or_default();
        match answer.status {
            404 => self.world.broken(format!("an acknowledged hold is lost: {}", hold.id)),
            200 => {
                let seen = parsed::<Hold>(&answer);
                let checked = seen.and_then(|seen| self.books.lock().see_hold(&key, sent, &seen));
                self.note(checked);
            }
            _ => {}
        }
    }

    /// Places several holds in one batch; what is not certain of them is left to the end.
    async fn buy_together(&mut self) {
        let mut operations = Vec::new();
        let mut keys = Vec::new();
        for _ in 0..self.rng.random_range(2..=6) {
            let item = self.rng.random_range(0..self.world.plan.items.len());
            let buyer = format!("b{}", self.rng.random_range(0..self.world.plan.buyers));
            let (key, quantity) = (self.fresh_key(), self.rng.random_range(1..=2));
            self.books.lock().open_key(&key, item, &buyer, quantity);
            let plan = &self.world.plan.items[item];
            let mut place = json!({
                "op": "place", "key": key, "item": plan.name,
                "quantity": quantity, "buyer": buyer, "reference": key,
            });
            in_region(plan, &buyer, &mut place);
            operations.push(place);
            keys.push(key);
        }
        let ask = Ask {
            body: Some(json!({ "operations": operations })),
            ..Ask::new("POST", "/v1/holds:batch")
        };
        let (node, sent) = (self.any_node(), moment());
        let told = self.world.call(node, ask).await;
        let checked = self.hear_batch(&keys, sent, &told);
        self.note(checked);
    }

    fn hear_batch(&self, keys: &[String], sent: u64, told: &Told) -> Result<(), String> {
        let mut books = self.books.lock();
        let answer = match told {
            Told::Answer(answer) if answer.status == 200 => answer,
            Told::Answer(answer) if answer.is_definite() => return Ok(()),
            Told::Refused => return Ok(()),
            Told::Answer(_) | Told::Lost => {
                for key in keys {
                    books.place_told(key, sent, &Told::Lost)?;
                }
                return Ok(());
            }
        };
        let results: holdfast::api::BatchResults = parsed(answer)?;
        if results.results.len() != keys.len() {
            return Err(format!("{} results for {} operations", results.results.len(), keys.len()));
        }
        for (key, result) in keys.iter().zip(results.results) {
            let hold = result.hold.map(serde_json::to_value);
            let problem = result.problem.map(serde_json::to_value);
            let body = hold.or(problem).unwrap_or(Ok(serde_json::Value::Null));
            let one = Answer {
                status: result.status,
                commit: result.commit.as_deref().and_then(super::call::Commit::parse),
                replayed: result.replayed,
                body: body.map_err(|error| error.to_string())?,
            };
            books.place_answered(key, sent, &one)?;
        }
        Ok(())
    }

    async fn ask_receipt(&mut self) {
        let (key, item, buyer, sure, sent) = {
            let books = self.books.lock();
            let count = books.keys.len();
            if count == 0 {
                return;
            }
            let at = self.rng.random_range(0..count);
            let (key, book) = books.keys.iter().nth(at).expect("counted");
            let sure = book.hold.is_some();
            (key.clone(), book.item, book.buyer.clone(), sure, moment())
        };
        let name = &self.world.plan.items[item].name;
        let region = self.world.plan.items[item].region_of(&buyer);
        let region = region.map(|region| format!("&region={region}")).unwrap_or_default();
        let ask = Ask::get(format!("/v1/receipts/{key}?item={name}&buyer={buyer}{region}"));
        let node = self.any_node();
        let Told::Answer(answer) = self.world.call(node, ask).await else { return };
        if answer.status != 200 {
            return;
        }
        let state = answer.body.get("state").and_then(|state| state.as_str()).unwrap_or_default();
        if sure && state != "committed" {
            let words = format!("key {key} had made a hold at {sent}, and is said to be {state}");
            self.world.broken(words);
        }
        let checked = self.hear_receipt(&key, sent, &answer, false);
        self.note(checked);
    }

    /// Reads what any node shows.
    async fn look(&mut self) {
        let item = self.rng.random_range(0..self.world.plan.items.len());
        let name = &self.world.plan.items[item].name;
        let path = match self.rng.random_range(0..10) {
            0 => format!("/v1/items/{name}/audit"),
            1 => format!("/v1/items/{name}/audit?consistency=local"),
            2 => format!("/v1/items/{name}/availability"),
            3 => format!("/v1/items/{name}/availability?consistency=linearizable"),
            4 => format!("/v1/items/{name}"),
            5 => "/v1/sold-out".to_owned(),
            6 => format!("/v1/holds?item={name}&limit=20"),
            7 => format!("/v1/items/{name}/layout"),
            8 => format!("/v1/items/{name}/transfers"),
            _ => "/admin/v1/digest".to_owned(),
        };
        let node = self.any_node();
        self.world.call(node, Ask::get(path)).await;
    }
}

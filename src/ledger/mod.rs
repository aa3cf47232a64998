//! The ledger: pure. Same ledger + same entry = same ledger and same answers, on every replica, in
//! every replay. No I/O, clock, randomness, async, logging, floats, or iteration over a randomly
//! seeded map.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::float_arithmetic))]

mod answer;
mod books;
mod bounds;
mod bucket;
mod bucket_page;
mod buyers;
mod by_hand;
mod chunk;
mod command;
mod copies;
mod cut;
mod deadline;
mod definition;
mod digest;
mod due;
mod encoding;
mod escrow;
mod find;
mod gist;
mod hold;
mod ids;
mod item;
mod lapse;
mod layout;
mod level;
mod load;
mod lookahead;
mod lowering;
mod page;
mod place;
mod query;
mod receipts;
mod record;
mod record_bytes;
mod roll;
mod roster;
mod schema;
mod scope;
mod segment;
mod settle;
mod slot;
mod spread_command;
mod spread_items;
mod sweep;
mod table;
#[cfg(test)]
mod tests;
mod transitions;
mod walk;

pub use answer::*;
pub use command::*;
pub use hold::{HoldId, HoldIdText, NotAHoldId};
pub use ids::*;
pub use lookahead::Seen;
pub use query::*;
pub use roll::RollEntry;
pub use roster::*;
pub use schema::{SchemaRange, SchemaVersion, SetSchema};
pub use scope::*;
pub use spread_items::ItemCursor;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use books::Books;
use bounds::Decided;
use bucket::Bucket;
use cut::Walked;
use item::{Item, ItemKey};
use page::{Kind, PAGE_VERSION, PageId};
use record::{Record, Standing};
use roster::RosterPage;
use schema::SchemaPage;

use crate::planted::{Fault, planted};

/// What every replica of every shard agrees on for the life of the cluster; part of its identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// How many shards the cluster has.
    pub shards: u16,
    /// The key of the hold ids' tags.
    pub tag_key: [u8; 16],
    /// Slots a bucket.
    pub slots: u16,
    /// The most due holds that one entry sweeps, beyond what its own commands need.
    pub sweep_max: u32,
    /// How long a receipt outlives the greatest lifetime that its hold could have had, in ms.
    pub receipt_retention_ms: u64,
    /// How long a sold hold keeps its record, in ms.
    pub sold_retention_ms: u64,
}

/// One shard's ledger.
///
/// Invariants: `names` holds every item that is not retired; every bucket's item is in `items`;
/// whatever is derived (indices, sums, deadlines, digest) says what the records say.
#[derive(Debug)]
pub struct Ledger {
    items: BTreeMap<ItemKey, Item>,
    names: BTreeMap<ItemName, ItemKey>,
    buckets: BTreeMap<BucketRef, Bucket>,
    /// The number of the next item that is created here; never given twice.
    next_item: u64,
    books: Books,
    meta_hashed: u128,
    roster: RosterPage,
    schema: SchemaPage,
}

/// What is written of the ledger itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Meta {
    shard: ShardId,
    shards: u16,
    slots: u16,
    now: UnixMs,
    index: LogIndex,
    next_item: u64,
}

/// What the gate learns from applied state before anything is proposed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Foreseen {
    /// Applied state alone decides: a replay or a refusal. Nothing needs to be proposed.
    Answer(Answer),
    /// The ledger would grant it now if nothing else were in flight.
    Admit(Demand),
}

/// What an admitted command would take, for the gate to weigh against what is in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Demand {
    /// The item and bucket whose units it takes; `None` for commands that take none.
    pub bucket: Option<BucketRef>,
    /// Units it would take.
    pub quantity: u64,
    /// Units that the bucket could give now (available and due).
    pub free: u64,
    /// A stable hash of (item number, region, buyer) whose count is limited, and how many units are
    /// left to that buyer; `None` without a limit.
    pub buyer: Option<(u64, u64)>,
}

/// A page's stable name. Ordered, opaque, ≤ 64 bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageKey(pub Vec<u8>);

/// One of the two databases that checkpoints are written to in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Turn {
    /// The first.
    A,
    /// The second.
    B,
}

/// The pages do not make a ledger.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the pages do not make a ledger: {0}")]
pub struct LoadError(pub String);

impl Ledger {
    /// Returns an empty ledger of one shard.
    pub fn new(shard: ShardId, settings: Settings) -> Ledger {
        let mut ledger = Ledger {
            items: BTreeMap::new(),
            names: BTreeMap::new(),
            buckets: BTreeMap::new(),
            next_item: 1,
            books: Books::new(shard, settings),
            meta_hashed: 0,
            roster: RosterPage::default(),
            schema: SchemaPage::default(),
        };
        ledger.books.pages.touch(PageId::META, || None);
        ledger.settle();
        ledger
    }

    /// Applies one entry and answers its commands one for one, in order.
    pub fn apply<P: Placement>(&mut self, index: LogIndex, batch: &BatchOf<P>) -> Vec<Answer> {
        let mut answers = Vec::with_capacity(batch.commands.len());
        self.entry(index, batch, |answer| answers.push(answer));
        answers
    }

    fn entry<P: Placement>(
        &mut self,
        index: LogIndex,
        batch: &BatchOf<P>,
        mut answer: impl FnMut(Answer),
    ) {
        let meta = self.meta();
        self.books.pages.touch(PageId::META, || Some(encode_meta(&meta)));
        self.books.index = index;
        self.books.now = if planted(Fault::TimeGoesBack) {
            batch.stamp
        } else {
            self.books.now.max(batch.stamp)
        };
        self.books.swept = 0;
        self.sweep_due();
        self.forget_old(batch.commands.len());
        let mut seen = std::mem::take(&mut self.books.seen);
        self.look_at(batch.commands.iter().map(Some), &mut seen);
        for (command, seen) in batch.commands.iter().zip(&seen) {
            answer(match command.placing() {
                Some(place) => {
                    let trace = seen.0.unwrap_or_else(|| self.trace(place.buyer, place.key));
                    self.place(place, trace)
                }
                None => self.command(command),
            });
        }
        self.books.seen = seen;
        self.settle();
    }

    /// Applies one entry for a replica that nobody waits at: the same ledger afterwards as after
    /// [`Ledger::apply`], without the cost of showing each hold in an answer.
    pub fn apply_unanswered<P: Placement>(&mut self, index: LogIndex, batch: &BatchOf<P>) {
        self.books.unanswered = true;
        self.entry(index, batch, drop);
        self.books.unanswered = false;
    }

    fn command<P: Placement>(&mut self, command: &CommandOf<P>) -> Answer {
        use CommandOf as Command;
        match command {
            Command::Define(define) => self.define(define),
            Command::Adjust(adjust) => self.adjust(adjust),
            Command::SetMode(set) => self.set_mode(set),
            Command::Retire(retire) => self.retire(retire),
            Command::Place(place) => {
                let place = place.asked();
                self.place(place, self.trace(place.buyer, place.key))
            }
            Command::Extend(extend) => self.change(self.judge_extend(extend)),
            Command::Confirm(confirm) => self.change(self.judge_confirm(confirm)),
            Command::Release(release) => self.change(self.judge_release(release)),
            Command::Return(returned) => self.change(self.judge_return(returned)),
            Command::Void(void) => self.void(void),
            Command::Advance => Answer::Advanced { swept: self.books.swept },
            Command::OpenBucket(open) => self.open_bucket(open),
            Command::SendStock(send) => self.send_stock(send),
            Command::AcceptStock(accept) => self.accept_stock(accept),
            Command::SettleStock(settle) => self.settle_stock(settle),
            Command::DefineSpread(spread) => self.define_spread(spread),
            Command::SetLayout(set) => self.set_layout(set),
            Command::Configure(configure) => self.configure(configure),
            Command::CopyAnswered(answered) => self.copy_answered(answered),
            Command::EraseCopy(erase) => self.erase_copy(erase),
            Command::LowerBegin(begin) => self.lower_begin(begin),
            Command::LowerCommit(end) => self.lower_commit(end),
            Command::LowerAbort(end) => self.lower_abort(end),
            Command::DeleteBegin(delete) => self.delete_begin(delete),
            Command::DeleteAbort(delete) => self.delete_abort(delete),
            Command::DeleteCommit(delete) => self.delete_commit(delete),
            Command::MoveStock(send) => self.move_stock(send),
            Command::SetRoster(set) => self.set_roster(set),
            Command::SetSchema(set) => self.set_schema(set),
        }
    }

    /// Tells what applied state says of a command, without changing anything. Receipts come before
    /// stock, always.
    pub fn foresee<P: Placement>(&self, command: &CommandOf<P>) -> Foreseen {
        self.foresee_seen(command, Seen::default())
    }

    /// As [`Ledger::foresee`], of a command that [`Ledger::look_at`] has looked at.
    pub fn foresee_seen<P: Placement>(&self, command: &CommandOf<P>, seen: Seen) -> Foreseen {
        use CommandOf as Command;
        fn nothing<T>(_: T) -> Demand {
            Demand::default()
        }
        let decided: Decided<Demand> = match command {
            Command::Define(define) => self.judge_define(define).map(nothing),
            Command::Adjust(adjust) => self.foresee_adjust(adjust),
            Command::SetMode(set) => self.judge_mode(set).map(nothing),
            Command::Retire(retire) => self.judge_retire(retire).map(nothing),
            Command::Place(place) => {
                let place = place.asked();
                let trace = seen.0.unwrap_or_else(|| self.trace(place.buyer, place.key));
                self.judge_place(place, trace).map(|grant| grant.demand)
            }
            Command::Extend(extend) => self.judge_extend(extend).map(|change| change.demand()),
            Command::Confirm(confirm) => self.judge_confirm(confirm).map(|change| change.demand()),
            Command::Release(release) => self.judge_release(release).map(|change| change.demand()),
            Command::Return(returned) => self.judge_return(returned).map(|change| change.demand()),
            Command::Void(void) => self.judge_void(void).map(nothing),
            Command::Advance => Ok(Demand::default()),
            Command::OpenBucket(open) => self.judge_open(open).map(nothing),
            Command::SendStock(send) => self.judge_send(send).map(|plan| plan.demand),
            Command::AcceptStock(accept) => self.judge_accept(accept).map(nothing),
            Command::SettleStock(settle) => self.judge_settle(settle).map(nothing),
            Command::DefineSpread(spread) => self.judge_define_spread(spread).map(nothing),
            Command::SetLayout(set) => self.judge_layout(set).map(nothing),
            Command::Configure(configure) => self.judge_configure(configure).map(nothing),
            Command::CopyAnswered(answered) => self.judge_answered(answered).map(nothing),
            Command::EraseCopy(erase) => self.judge_erase(erase).map(nothing),
            Command::LowerBegin(begin) => self.judge_lower_begin(begin).map(|plan| plan.demand),
            Command::LowerCommit(end) => self.judge_lower_commit(end).map(|plan| plan.demand),
            Command::LowerAbort(end) => self.judge_lower_abort(end).map(nothing),
            Command::DeleteBegin(delete) => self.judge_delete_begin(delete).map(nothing),
            Command::DeleteAbort(delete) => self.judge_delete_abort(delete).map(nothing),
            Command::DeleteCommit(delete) => self.judge_delete_commit(delete).map(nothing),
            Command::MoveStock(send) => self.judge_move(send).map(|plan| plan.demand),
            Command::SetRoster(set) => self.judge_roster(set).map(nothing),
            Command::SetSchema(set) => self.judge_schema(set).map(nothing),
        };
        match decided {
            Ok(demand) => Foreseen::Admit(demand),
            Err(answer) => Foreseen::Answer(*answer),
        }
    }

    /// Answers a question from applied state, at applied ledger time.
    pub fn query(&self, query: &Query) -> Found {
        self.find(query)
    }

    /// Returns ledger time: the greatest stamp applied.
    pub fn now(&self) -> UnixMs {
        self.books.now
    }

    /// Returns the index of the entry that was applied last; 0 before the first.
    pub fn applied(&self) -> LogIndex {
        self.books.index
    }

    /// Returns the earliest deadline of a live hold, also when it has passed and is not swept, or
    /// `None` when nothing is held.
    pub fn next_due(&self) -> Option<UnixMs> {
        self.books.due.first().map(|first| UnixMs(first.0))
    }

    /// Returns the digest: the wrapping sum of the 128-bit hashes of all records.
    pub fn digest(&self) -> u128 {
        self.books.digest.sum()
    }

    /// Begins a checkpoint into database `turn`: everything dirty since that database's last turn
    /// (or everything, when `whole`) is cut as it is now. From here on a write to a page of the cut
    /// that is not yet encoded encodes it first. A cut that was under way is given up; its pages
    /// stay dirty. After a [`Ledger::load`] nothing is dirty: the first cut into the database that
    /// was not loaded must be `whole`.
    pub fn begin_cut(&mut self, turn: Turn, whole: bool) {
        self.books.pages.begin(turn, whole);
    }

    /// Encodes up to `pages` more pages of the cut and returns them with those that writes encoded
    /// meanwhile: `None` says that the page is gone. Empty when the cut is complete.
    pub fn take_cut(&mut self, pages: usize) -> Vec<(PageKey, Option<Vec<u8>>)> {
        let mut taken = self.books.pages.take_ready();
        for _ in 0..pages.max(1) {
            let Some(page) = self.next_of_cut() else { break };
            let bytes = self.encode_page(page);
            self.books.pages.encoded(page, bytes.is_some());
            taken.push((page.key(), bytes));
        }
        taken
    }

    /// The next page of the cut that nobody has encoded.
    fn next_of_cut(&mut self) -> Option<PageId> {
        while let Some(after) = self.books.pages.walking() {
            let next = self.page_after(after);
            match self.books.pages.walk_to(next) {
                Walked::Page(page) => return Some(page),
                Walked::Encoded => {}
                Walked::All => break,
            }
        }
        self.books.pages.next_pending().or_else(|| self.next_page_of_records())
    }

    /// Says that the cut's pages are durable (their dirt of that turn is over), or are not (it
    /// comes back).
    pub fn end_cut(&mut self, durable: bool) {
        self.books.pages.end(durable);
    }

    /// Rebuilds a ledger from all its pages, in any order. Its digest is computed from the records;
    /// the caller compares it with the header's.
    ///
    /// # Errors
    ///
    /// [`LoadError`] when a page does not decode, is named wrongly, or contradicts another, and
    /// when there are none.
    pub fn load(
        shard: ShardId,
        settings: Settings,
        pages: impl Iterator<Item = (PageKey, Vec<u8>)>,
    ) -> Result<Ledger, LoadError> {
        load::load(shard, settings, pages)
    }

    /// Returns counts for metrics, at a cost that does not grow with the number of holds.
    pub fn figures(&self) -> Figures {
        let mut figures = Figures {
            items: self.names.len() as u64,
            expired: self.books.expired,
            pages_dirty: self.books.pages.dirty_count(),
            ..Figures::default()
        };
        for bucket in self.buckets.values() {
            let add = |sum: &mut u64, units: u64| *sum = sum.saturating_add(units);
            add(&mut figures.holds_held, bucket.counts.held);
            add(&mut figures.holds_sold, bucket.counts.sold);
            add(&mut figures.holds_ended, bucket.counts.ended);
            add(&mut figures.units_held, bucket.stock.held);
            add(&mut figures.units_sold, bucket.stock.sold);
            add(&mut figures.units_available, bucket.stock.available);
        }
        let broken = self.items.values().filter(|item| item.record.invariant_broken);
        figures.invariant_broken = broken.count() as u64;
        figures
    }

    /// Breaks the law of an item's first bucket on this shard on purpose, as no command can:
    /// `units` appear from nothing. For tests of what follows.
    #[doc(hidden)]
    pub fn corrupt_for_test(&mut self, name: &ItemName, units: u64) {
        let Some(key) = self.names.get(name) else { return };
        let Some(bucket) = self.buckets_of(*key).next().map(|bucket| bucket.key) else { return };
        let Some(bucket) = self.buckets.get_mut(&bucket) else { return };
        bucket.touch(&mut self.books);
        bucket.stock.available = bucket.stock.available.saturating_add(units);
    }

    fn meta(&self) -> Meta {
        Meta {
            shard: self.books.shard,
            shards: self.books.settings.shards,
            slots: self.books.settings.slots,
            now: self.books.now,
            index: self.books.index,
            next_item: self.next_item,
        }
    }

    /// A page as it is now; `None` when it is gone.
    fn encode_page(&self, page: PageId) -> Option<Vec<u8>> {
        let number = u16::try_from(page.number).ok();
        let bucket = || self.buckets.get(&page.bucket_ref());
        match page.kind {
            Kind::Meta => Some(encode_meta(&self.meta())),
            Kind::Item => self.items.get(&(page.home, page.item)).map(settle::encode_item),
            Kind::Adjustments => {
                self.items.get(&(page.home, page.item))?.encode_adjustments(page.number)
            }
            Kind::Bucket => bucket().map(Bucket::encode_page),
            Kind::Pairs => bucket()?.encode_pairs(number?),
            Kind::Floors => bucket()?.encode_floors(number?),
            Kind::Records => bucket()?.encode_records(page.slot, page.number),
            Kind::Roster => self.roster.encode(),
            Kind::Schema => self.schema.encode(),
        }
    }

    /// The id of a hold in a bucket.
    fn id_of(&self, bucket: &Bucket, slot: u16, sequence: u64) -> HoldId {
        let mut id = HoldId {
            home: bucket.key.home,
            item: bucket.key.item,
            region: bucket.stock.region,
            bucket: bucket.key.bucket,
            slot,
            sequence,
            tag: 0,
        };
        id.tag = id.tag_of(&self.books.settings.tag_key);
        id
    }

    fn view(
        &self,
        item: &Item,
        bucket: &Bucket,
        slot: u16,
        sequence: u64,
        record: &Record<'_>,
    ) -> Box<HoldView> {
        if self.books.unanswered {
            return Box::new(unseen());
        }
        let extends_used = u32::from(record.extends_used);
        Box::new(HoldView {
            id: self.id_of(bucket, slot, sequence),
            name: item.record.name.clone(),
            region: (*item.region_name(bucket.stock.region)).to_owned(),
            buyer: record.buyer().map(str::to_owned),
            state: match record.standing_at(self.books.now.0) {
                Standing::Held => HoldState::Held,
                Standing::Sold => HoldState::Sold,
                Standing::Released | Standing::Voided => HoldState::Released,
                Standing::Expired => HoldState::Expired,
                Standing::Returned => HoldState::Returned,
            },
            quantity: record.quantity,
            sold: record.sold,
            placed_at: UnixMs(record.placed_at),
            expires_at: UnixMs(record.expires_at),
            now: self.books.now,
            extends_left: record.rules.extends_max().saturating_sub(extends_used),
            revision: record.revision,
            reference: record.reference().map(str::to_owned),
        })
    }

    fn answer_hold(
        &self,
        item: ItemKey,
        bucket: BucketRef,
        slot: u16,
        sequence: u64,
        replayed: bool,
    ) -> Answer {
        let found = self.items.get(&item).zip(self.buckets.get(&bucket));
        let found =
            found.and_then(|(item, bucket)| Some((item, bucket, bucket.record(slot, sequence)?)));
        match found {
            Some((item, bucket, record)) => {
                Answer::Hold { hold: self.view(item, bucket, slot, sequence, &record), replayed }
            }
            None => Answer::Refused(Refusal::HoldNotFound),
        }
    }
}

fn encode_meta(meta: &Meta) -> Vec<u8> {
    let mut page = vec![PAGE_VERSION];
    item::encode(meta, &mut page);
    page
}

/// What stands for a hold in an answer that nobody reads.
fn unseen() -> HoldView {
    HoldView {
        id: HoldId::default(),
        name: ItemName { tenant: String::new(), item: String::new() },
        region: String::new(),
        buyer: None,
        state: HoldState::Held,
        quantity: 0,
        sold: 0,
        placed_at: UnixMs(0),
        expires_at: UnixMs(0),
        now: UnixMs(0),
        extends_left: 0,
        revision: 0,
        reference: None,
    }
}

/// Counts for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Figures {
    /// Items that exist.
    pub items: u64,
    /// Live holds, due ones included.
    pub holds_held: u64,
    /// Holds that are sold.
    pub holds_sold: u64,
    /// Holds that ended otherwise and are still remembered.
    pub holds_ended: u64,
    /// Units held, due ones included.
    pub units_held: u64,
    /// Units sold.
    pub units_sold: u64,
    /// Units available.
    pub units_available: u64,
    /// Holds expired since this ledger was loaded.
    pub expired: u64,
    /// Pages dirty for the next checkpoint.
    pub pages_dirty: u64,
    /// Items paused by a broken law.
    pub invariant_broken: u64,
}

/// Returns the home shard of an item.
pub fn home_shard(name: NameRef<'_>, shards: u16) -> ShardId {
    receipts::home_of(name, shards)
}

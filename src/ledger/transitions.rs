//! What happens to a hold after its placement: extend, confirm, release, return.
//!
//! Promises: every exit credits exactly once and exactly what is still open; a hold is dead from
//! its deadline on, swept or not; a keyed operation leaves a receipt, and answers its key again
//! without changing anything: as done while the hold stands where the operation put it, with how
//! the hold ended after that. An operation that finds the work done (release of a released hold)
//! changes nothing but its receipt, which it leaves as long as the returns of that hold find room.

use super::answer::{Answer, HoldView, PauseReason, Refusal};
use super::bounds::{self, Decided, invalid, refuse, units_in_words};
use super::bucket::Bucket;
use super::command::{Confirm, Extend, Mode, Release, Return};
use super::hold::HoldId;
use super::ids::UnixMs;
use super::item::{Item, ItemKey};
use super::place::{Grant, Spot};
use super::receipts::{operation_key, optional_text};
use super::record::{
    Asked, EXTENSIONS_MAX, FOUND_DONE_MAX, OPERATIONS_MAX, Operation, Record, Standing,
};
use super::{BucketRef, Demand, Ledger};
use crate::planted::{Fault, planted};

/// A hold that an operation has found.
#[derive(Debug, Clone, Copy)]
struct Hold<'a> {
    spot: Spot,
    sequence: u64,
    item: &'a Item,
    bucket: &'a Bucket,
    record: Record<'a>,
}

impl Hold<'_> {
    fn change(&self, operation: Operation, effect: Effect) -> Change {
        let Hold { spot, sequence, .. } = *self;
        Change { spot, sequence, operation, effect, replayed: false, grant: None }
    }
}

/// What an operation will do to a hold.
#[derive(Debug, Clone)]
pub(super) struct Change {
    spot: Spot,
    sequence: u64,
    operation: Operation,
    effect: Effect,
    /// Whether the answer is that nothing was left to do.
    replayed: bool,
    /// Units to take, for a hold that is acquired again.
    grant: Option<Grant>,
}

#[derive(Debug, Clone, Copy)]
enum Effect {
    Extend {
        expires_at: u64,
    },
    Confirm {
        units: u64,
    },
    Release,
    Return {
        units: u64,
    },
    /// The work is done: only the receipt is left.
    Nothing,
}

impl Ledger {
    fn hold(&self, id: &HoldId, tenant: &str) -> Decided<Hold<'_>> {
        if id.tag_of(&self.books.settings.tag_key) != id.tag {
            return refuse(Refusal::HoldNotFound);
        }
        let item_key: ItemKey = (id.home, id.item);
        let bucket_key = BucketRef { home: id.home, item: id.item, bucket: id.bucket };
        let Some(item) = self.items.get(&item_key).filter(|item| !item.record.retired) else {
            return refuse(if id.home == self.books.shard {
                Refusal::HoldNotFound
            } else {
                Refusal::NotOwner
            });
        };
        if item.record.name.tenant != tenant {
            return refuse(Refusal::HoldNotFound);
        }
        let Some(bucket) = self.buckets.get(&bucket_key) else {
            return refuse(Refusal::NotOwner);
        };
        let record = bucket.record(id.slot, id.sequence);
        let right = |record: &Record<'_>| {
            record.standing != Standing::Voided && bucket.stock.region == id.region
        };
        let Some(record) = record.filter(right) else { return refuse(Refusal::HoldNotFound) };
        let spot = Spot {
            item: item_key,
            bucket: bucket_key,
            region: id.region,
            slot: id.slot,
            sequence: Some(id.sequence),
        };
        Ok(Hold { spot, sequence: id.sequence, item, bucket, record })
    }

    /// The view of a hold by its id.
    pub(super) fn hold_view(&self, id: &HoldId, tenant: &str) -> Option<Box<HoldView>> {
        Some(self.view_of(&self.hold(id, tenant).ok()?))
    }

    fn view_of(&self, hold: &Hold<'_>) -> Box<HoldView> {
        self.view(hold.item, hold.bucket, hold.spot.slot, hold.sequence, &hold.record)
    }

    /// Finds the hold of an operation, and answers the operation if its key is known.
    fn operation<'a>(
        &'a self,
        id: &HoldId,
        tenant: &str,
        key: &str,
        asked: Asked,
    ) -> Decided<(Hold<'a>, Operation)> {
        bounds::name("tenant", tenant)?;
        bounds::name("key", key)?;
        let hold = self.hold(id, tenant)?;
        let key = operation_key(&self.books.settings.tag_key, key);
        let known = hold.record.operations().iter().find(|operation| operation.key == key);
        if let Some(known) = known {
            return match asked.differs(&known.asked) {
                Some(field) => refuse(Refusal::KeyReused { field: field.to_owned() }),
                None => self.replayed(&hold, &asked),
            };
        }
        Ok((hold, Operation { key, asked }))
    }

    /// The answer to a known key of an operation: the truth of now.
    fn replayed<T>(&self, hold: &Hold<'_>, asked: &Asked) -> Decided<T> {
        let standing = hold.record.standing_at(self.books.now.0);
        let stands = match asked {
            Asked::Extend { .. } => standing == Standing::Held,
            Asked::Confirm { .. } => standing == Standing::Sold,
            Asked::Release { .. } => standing == Standing::Released,
            Asked::Return { .. } => matches!(standing, Standing::Sold | Standing::Returned),
        };
        if stands { self.found_done(hold) } else { self.ended(hold, standing) }
    }

    fn found_done<T>(&self, hold: &Hold<'_>) -> Decided<T> {
        Err(Box::new(Answer::Hold { hold: self.view_of(hold), replayed: true }))
    }

    /// An operation under a new key that finds its work done leaves its receipt, if there is room.
    fn leave_receipt(&self, hold: &Hold<'_>, operation: Operation) -> Decided<Change> {
        if hold.record.operations().len() >= FOUND_DONE_MAX {
            return self.found_done(hold);
        }
        let change = hold.change(operation, Effect::Nothing);
        Ok(Change { replayed: true, ..change })
    }

    fn ended<T>(&self, hold: &Hold<'_>, standing: Standing) -> Decided<T> {
        let hold = self.view_of(hold);
        refuse(match standing {
            Standing::Held => Refusal::NotSold { hold },
            Standing::Sold => Refusal::HoldConfirmed { hold },
            Standing::Expired => Refusal::HoldExpired { hold },
            Standing::Released | Standing::Returned => Refusal::HoldReleased { hold },
            Standing::Voided => Refusal::HoldNotFound,
        })
    }

    pub(super) fn judge_extend(&self, extend: &Extend) -> Decided<Change> {
        if extend.ttl_ms == Some(0) {
            return invalid("ttl_ms", "must be at least 1");
        }
        let asked = Asked::Extend { ttl_ms: extend.ttl_ms.unwrap_or(0) };
        let (hold, operation) = self.operation(&extend.hold, &extend.tenant, &extend.key, asked)?;
        let (record, now) = (hold.record, self.books.now.0);
        let standing = record.standing_at(now);
        if standing != Standing::Held {
            return self.ended(&hold, standing);
        }
        let rules = &record.rules;
        let ttl = extend.ttl_ms.unwrap_or(rules.ttl_ms());
        if ttl > rules.ttl_ms_max() {
            let rule = format!("must be at most {}", rules.ttl_ms_max());
            return invalid("ttl_ms", &rule);
        }
        // A closed item's holds run their course, extensions included.
        if hold.item.record.invariant_broken {
            return refuse(Refusal::ItemPaused { reason: PauseReason::Invariant });
        }
        if hold.item.record.mode == Mode::Paused {
            return refuse(Refusal::ItemPaused { reason: PauseReason::Operator });
        }
        let latest = record.placed_at.saturating_add(rules.lifetime_ms_max());
        let expires_at = now.saturating_add(ttl).max(record.expires_at);
        let extends_used = u32::from(record.extends_used);
        // One that does not move the deadline changes nothing, so it uses nothing up.
        let moves = expires_at > record.expires_at;
        if moves && (extends_used >= rules.extends_max() || expires_at > latest) {
            return refuse(Refusal::ExtendBudgetSpent { extends_used, latest: UnixMs(latest) });
        }
        if record.operations().len() >= EXTENSIONS_MAX {
            return invalid("key", "a hold is extended at most 32 times, whatever its budget");
        }
        Ok(hold.change(operation, Effect::Extend { expires_at }))
    }

    pub(super) fn judge_confirm(&self, confirm: &Confirm) -> Decided<Change> {
        if let Some(quantity) = confirm.quantity {
            bounds::quantity("quantity", quantity)?;
        }
        bounds::reference("reference", confirm.reference.as_deref())?;
        let asked = Asked::Confirm {
            quantity: confirm.quantity.unwrap_or(0),
            reacquire: confirm.reacquire,
            reference: optional_text(&self.books.settings.tag_key, confirm.reference.as_deref()),
        };
        let (hold, operation) =
            self.operation(&confirm.hold, &confirm.tenant, &confirm.key, asked)?;
        let record = hold.record;
        let mut standing = record.standing_at(self.books.now.0);
        if planted(Fault::ConfirmsExpired) && standing == Standing::Expired {
            standing = Standing::Held;
        }
        let units = confirm.quantity.unwrap_or(record.quantity);
        let grant = match standing {
            Standing::Sold => {
                if confirm.quantity.is_some_and(|asked| asked != record.confirmed) {
                    let rule =
                        format!("the hold is confirmed for {}", units_in_words(record.confirmed));
                    return invalid("quantity", &rule);
                }
                return self.leave_receipt(&hold, operation);
            }
            Standing::Released | Standing::Returned | Standing::Voided => {
                return self.ended(&hold, standing);
            }
            Standing::Expired if !confirm.reacquire => return self.ended(&hold, standing),
            Standing::Expired | Standing::Held if units > record.quantity => {
                let rule = format!("the hold is for {}", units_in_words(record.quantity));
                return invalid("quantity", &rule);
            }
            Standing::Held => {
                if hold.item.record.invariant_broken {
                    return refuse(Refusal::ItemPaused { reason: PauseReason::Invariant });
                }
                None
            }
            Standing::Expired => {
                self.granting(hold.item, hold.spot.region)?;
                self.selling(hold.item)?;
                let (buyer, limit) = (record.buyer(), record.rules.limit);
                Some(self.grant(hold.spot, hold.bucket, buyer, limit, units)?)
            }
        };
        Ok(Change { grant, ..hold.change(operation, Effect::Confirm { units }) })
    }

    pub(super) fn judge_release(&self, release: &Release) -> Decided<Change> {
        bounds::reference("reason", release.reason.as_deref())?;
        let secret = &self.books.settings.tag_key;
        let asked = Asked::Release { reason: optional_text(secret, release.reason.as_deref()) };
        let (hold, operation) =
            self.operation(&release.hold, &release.tenant, &release.key, asked)?;
        let standing = hold.record.standing_at(self.books.now.0);
        match standing {
            Standing::Held | Standing::Expired => Ok(hold.change(operation, Effect::Release)),
            Standing::Released => self.leave_receipt(&hold, operation),
            Standing::Sold | Standing::Returned | Standing::Voided => self.ended(&hold, standing),
        }
    }

    pub(super) fn judge_return(&self, returned: &Return) -> Decided<Change> {
        if let Some(quantity) = returned.quantity {
            bounds::quantity("quantity", quantity)?;
        }
        let asked = Asked::Return { quantity: returned.quantity.unwrap_or(0) };
        let (hold, operation) =
            self.operation(&returned.hold, &returned.tenant, &returned.key, asked)?;
        let record = hold.record;
        let standing = record.standing_at(self.books.now.0);
        if standing != Standing::Sold {
            return self.ended(&hold, standing);
        }
        let units = returned.quantity.unwrap_or(record.sold);
        if units > record.sold {
            let sold = match record.sold {
                1 => "only 1 unit is sold".to_owned(),
                sold => format!("only {sold} units are sold"),
            };
            return invalid("quantity", &sold);
        }
        if units < record.sold && record.operations().len() >= OPERATIONS_MAX {
            return invalid("key", "a hold keeps at most 40 receipts: return all that is left");
        }
        Ok(hold.change(operation, Effect::Return { units }))
    }

    /// Does what was judged.
    pub(super) fn change(&mut self, decided: Decided<Change>) -> Answer {
        let change = match decided {
            Ok(change) => change,
            Err(answer) => return *answer,
        };
        let Ledger { buckets, books, .. } = self;
        let Change { spot, sequence, operation, effect, .. } = change;
        let Some(bucket) = buckets.get_mut(&spot.bucket) else {
            return Answer::Refused(Refusal::NotOwner);
        };
        let now = books.now.0;
        if bucket.record(spot.slot, sequence).is_some_and(|record| record.is_due(now)) {
            bucket.sweep(spot.slot, sequence, books);
        }
        if let Some(grant) = change.grant {
            bucket.make_room(grant.demand.quantity, books);
        }
        let revision = books.index.0;
        if planted(Fault::ExpiredCreditsTwice)
            && matches!(effect, Effect::Release)
            && let Some(record) = bucket.record(spot.slot, sequence)
            && record.standing == Standing::Expired
        {
            let units = record.quantity;
            bucket.touch(books);
            bucket.stock.available = bucket.stock.available.saturating_add(units);
        }
        bucket.restate(spot.slot, sequence, books, |record| {
            if effect.on(record) {
                record.revision = revision;
            }
            record.remember(operation);
        });
        self.answer_hold(spot.item, spot.bucket, spot.slot, sequence, change.replayed)
    }
}

impl Change {
    /// Units that it takes.
    pub(super) fn demand(&self) -> Demand {
        self.grant.as_ref().map(|grant| grant.demand).unwrap_or_default()
    }
}

impl Effect {
    /// Changes the record; says whether it did.
    fn on(self, record: &mut Record<'_>) -> bool {
        match self {
            Effect::Nothing => return false,
            Effect::Extend { expires_at } => {
                if expires_at > record.expires_at {
                    record.extends_used = record.extends_used.saturating_add(1);
                }
                record.expires_at = expires_at;
            }
            Effect::Confirm { units } => {
                record.standing = Standing::Sold;
                record.sold = units;
                record.confirmed = units;
            }
            Effect::Release => record.standing = Standing::Released,
            Effect::Return { units } => {
                let units = if planted(Fault::ReturnsAll) { record.sold } else { units };
                record.sold = record.sold.saturating_sub(units);
                if record.sold == 0 {
                    record.standing = Standing::Returned;
                }
            }
        }
        true
    }
}

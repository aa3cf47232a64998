//! Stock that an operator moves by hand: once per key.
//!
//! The running totals of a pair say how much ever moved, and not whether one move was among it: a
//! pull in between looks the same. So a move by hand leaves a receipt. The giving bucket's ledger
//! remembers the key in the entry that sends the units; an item's home, when that is another
//! ledger, has remembered before what the key stands for, so that the key cannot stand for another
//! move from another bucket. Promises: the total stays; a refusal of the giving bucket leaves no
//! receipt there.

use super::answer::{Answer, Refusal};
use super::bounds::{self, Decided, refuse};
use super::command::{Adjust, Change, SendStock};
use super::escrow::SendPlan;
use super::item::{Adjustment, Item, ItemKey};
use super::{BucketRef, Demand, Ledger};

/// Before the keys of moves, which are no keys of adjustments: a caller's key has no `/`.
const MOVES: &str = "move/";

/// What a move's key is remembered as.
fn remembered_as(key: &str) -> String {
    [MOVES, key].concat()
}

/// The move that a change stands for.
fn move_of(change: &Change) -> Option<&SendStock> {
    match change {
        Change::Claim(send) | Change::Move(send) => Some(send),
        Change::Raise(_)
        | Change::Lower(_)
        | Change::Set { .. }
        | Change::RaiseIn { .. }
        | Change::LowerIn { .. } => None,
    }
}

/// The first field in which a move, asked again, differs from what its key stands for.
fn differs(send: &SendStock, known: &Adjustment) -> Option<&'static str> {
    let Some(was) = move_of(&known.change) else { return Some("from") };
    let fields = [
        ("from", send.from.bucket != was.from.bucket),
        ("to", send.to != was.to),
        ("quantity", send.quantity != was.quantity),
    ];
    fields.into_iter().find(|(_, differs)| *differs).map(|(field, _)| field)
}

impl Ledger {
    /// What is known of a move's key here: `None` nothing; its receipt when it is the same move.
    fn known_move<'a>(
        item: &'a Item,
        key: &str,
        send: &SendStock,
    ) -> Decided<Option<&'a Adjustment>> {
        let known = item.keys.get(&remembered_as(key));
        let Some(known) = known.and_then(|number| item.adjustments.get(number)) else {
            return Ok(None);
        };
        match differs(send, known) {
            Some(field) => refuse(Refusal::KeyReused { field: field.to_owned() }),
            None => Ok(Some(known)),
        }
    }

    pub(super) fn judge_claim(&self, adjust: &Adjust, send: &SendStock) -> Decided<()> {
        bounds::name("key", &adjust.key)?;
        bounds::quantity("quantity", send.quantity)?;
        let (key, item) = self.item_at_home(&adjust.name)?;
        if (send.from.home, send.from.item) != key || item.placement(send.from.bucket).is_none() {
            return refuse(Refusal::ItemNotFound);
        }
        match Self::known_move(item, &adjust.key, send)? {
            Some(_) => Err(Box::new(Answer::Noted)),
            None => Ok(()),
        }
    }

    /// Remembers at home what a key stands for.
    pub(super) fn claim_move(&mut self, adjust: &Adjust, send: &SendStock) -> Answer {
        if let Err(answer) = self.judge_claim(adjust, send) {
            return *answer;
        }
        self.remember_move(adjust, Change::Claim(*send));
        Answer::Noted
    }

    /// Judges a move at the giving bucket; the send as it will be done, with what the pair has sent
    /// until now.
    pub(super) fn judge_by_hand(
        &self,
        adjust: &Adjust,
        send: &SendStock,
    ) -> Decided<(SendStock, SendPlan)> {
        bounds::name("key", &adjust.key)?;
        bounds::quantity("quantity", send.quantity)?;
        let Some(bucket) = self.buckets.get(&send.from) else { return refuse(Refusal::NotOwner) };
        let key: ItemKey = (send.from.home, send.from.item);
        let item = self.items.get(&key).filter(|item| !item.record.retired);
        let Some(item) = item.filter(|item| item.record.name == adjust.name) else {
            return refuse(Refusal::NotOwner);
        };
        let pair = bucket.pairs.get(&send.to.0).copied().unwrap_or_default();
        let known = Self::known_move(item, &adjust.key, send)?;
        if let Some(Adjustment { change: Change::Move(was), .. }) = known {
            return Err(Box::new(Answer::Moved {
                sent: was.if_sent.saturating_add(was.quantity),
                sent_in_all: pair.sent,
                floor_sent: pair.floor_sent,
                replayed: true,
            }));
        }
        let send = SendStock { if_sent: pair.sent, ..*send };
        let plan =
            if self.is_beside(&send) { self.judge_move(&send)? } else { self.judge_send(&send)? };
        Ok((send, plan))
    }

    /// Sends stock at an operator's word, and remembers the key in the same entry.
    pub(super) fn move_by_hand(&mut self, adjust: &Adjust, send: &SendStock) -> Answer {
        let send = match self.judge_by_hand(adjust, send) {
            Ok((send, _)) => send,
            Err(answer) => return *answer,
        };
        let sent =
            if self.is_beside(&send) { self.move_stock(&send) } else { self.send_stock(&send) };
        let Answer::Sent { sent, floor_sent } = sent else { return sent };
        self.remember_move(adjust, Change::Move(send));
        Answer::Moved { sent, sent_in_all: sent, floor_sent, replayed: false }
    }

    fn remember_move(&mut self, adjust: &Adjust, change: Change) {
        let Some(send) = move_of(&change) else { return };
        let key: ItemKey = (send.from.home, send.from.item);
        self.touch_item(key);
        let receipt = Adjust { key: remembered_as(&adjust.key), change, ..adjust.clone() };
        self.remember_adjustment(key, &receipt);
    }

    /// Whether the receiver lives here too: all three steps are one entry then.
    fn is_beside(&self, send: &SendStock) -> bool {
        self.buckets.contains_key(&BucketRef { bucket: send.to, ..send.from })
    }

    /// What a change of a total, or a move by hand, would take.
    pub(super) fn foresee_adjust(&self, adjust: &Adjust) -> Decided<Demand> {
        match &adjust.change {
            Change::Claim(send) => self.judge_claim(adjust, send).map(|()| Demand::default()),
            Change::Move(send) => self.judge_by_hand(adjust, send).map(|(_, plan)| plan.demand),
            Change::Raise(_)
            | Change::Lower(_)
            | Change::Set { .. }
            | Change::RaiseIn { .. }
            | Change::LowerIn { .. } => self.judge_adjust(adjust).map(|plan| plan.demand),
        }
    }
}

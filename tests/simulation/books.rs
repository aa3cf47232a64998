//! What the clients were told: every key, every hold, every change of a total, with what is still
//! unknown of each.

use std::collections::{BTreeMap, BTreeSet};

use holdfast::api::{Hold, HoldState};
use holdfast::runtime::now;

use super::call::{Answer, Told};
use super::plan::{ItemPlan, Plan};

/// Microseconds of virtual time.
pub(crate) type Us = u64;

/// Returns the present moment.
pub(crate) fn moment() -> Us {
    u64::try_from(now().elapsed_since_start().as_micros()).unwrap_or(u64::MAX)
}

/// A placing key.
#[derive(Debug, Clone)]
pub(crate) struct KeyBook {
    pub(crate) item: usize,
    pub(crate) buyer: String,
    pub(crate) quantity: u64,
    pub(crate) first_sent: Us,
    /// Attempts whose outcome is unknown.
    pub(crate) unknown: u32,
    /// Where its hold was placed, as a 201 said.
    pub(crate) placed_at: Option<(u16, u64)>,
    /// Where it was refused, without a hold.
    pub(crate) refused_at: Vec<(u16, u64)>,
    /// The hold that it made, as far as anybody was told.
    pub(crate) hold: Option<String>,
    /// Whether a 201 that is no replay was given.
    pub(crate) granted: bool,
    /// Since when it is voided, as acknowledged.
    pub(crate) voided: Option<Us>,
    /// Whether a void was ever sent.
    pub(crate) void_sent: bool,
}

/// A hold, as its buyer was told of it.
#[derive(Debug, Clone, Default)]
pub(crate) struct HoldBook {
    /// Units sold by an acknowledged confirm, and where in the log when it is no replay.
    pub(crate) confirmed: Option<u64>,
    pub(crate) confirmed_since: Us,
    pub(crate) confirmed_at: Option<(u16, u64)>,
    pub(crate) confirm_maybe: bool,
    pub(crate) reacquire_sent: bool,
    pub(crate) released: bool,
    pub(crate) released_since: Us,
    pub(crate) release_maybe: bool,
    pub(crate) returned: u64,
    pub(crate) return_maybe: u64,
    /// The first moment by which it was known to hold nothing any more.
    pub(crate) gone_by: Option<Us>,
    /// Where `hold-expired` was answered to a confirm without re-acquiring.
    pub(crate) refused_as_expired: Vec<(u16, u64)>,
}

/// A change of an item's total.
#[derive(Debug, Clone)]
pub(crate) struct Adjustment {
    pub(crate) item: usize,
    pub(crate) delta: i64,
    pub(crate) sent: Us,
    pub(crate) acked: Option<Us>,
    /// Since when it is certain that it changed nothing.
    pub(crate) refused: Option<Us>,
}

/// A placement that was refused for want of stock.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub(crate) item: usize,
    pub(crate) sent: Us,
    pub(crate) answered: Us,
    /// Units that must have been missing: free < this, at some moment.
    pub(crate) wanted: u64,
    #[expect(dead_code, reason = "it is told by Debug, when the refusal was false")]
    pub(crate) words: String,
}

/// A time in which an item was certainly paused.
#[derive(Debug, Clone)]
pub(crate) struct Pause {
    pub(crate) item: usize,
    pub(crate) from: Us,
    pub(crate) until: Option<Us>,
}

/// All that the clients know.
#[derive(Debug, Default)]
pub(crate) struct Books {
    pub(crate) keys: BTreeMap<String, KeyBook>,
    pub(crate) holds: BTreeMap<String, HoldBook>,
    pub(crate) adjustments: Vec<Adjustment>,
    pub(crate) refusals: Vec<Refusal>,
    pub(crate) pauses: Vec<Pause>,
    /// Items of which a pause or resume may still come from a socket.
    pub(crate) modes_unsure: BTreeMap<usize, bool>,
    /// Items that lie on several buckets.
    pub(crate) spread: BTreeSet<usize>,
    /// Items of which a region may keep units that another's buyers do not get.
    pub(crate) walled: BTreeSet<usize>,
    /// Grants: item, sent, answered.
    pub(crate) grants: Vec<(usize, Us, Us)>,
}

/// What an answer is about, in which state.
pub(crate) fn hold_of(body: &serde_json::Value) -> Option<Hold> {
    serde_json::from_value(body.clone()).ok()
}

impl Books {
    /// Opens the books of a shop.
    pub(crate) fn of(plan: &Plan) -> Books {
        let which = |chosen: fn(&ItemPlan) -> bool| {
            (0..).zip(&plan.items).filter(|(_, item)| chosen(item)).map(|(at, _)| at).collect()
        };
        Books {
            spread: which(ItemPlan::is_spread),
            walled: which(|item| !item.regions.is_empty()),
            ..Books::default()
        }
    }

    /// Notes a key before its first attempt.
    pub(crate) fn open_key(&mut self, key: &str, item: usize, buyer: &str, quantity: u64) {
        let book = KeyBook {
            item,
            buyer: buyer.to_owned(),
            quantity,
            first_sent: moment(),
            unknown: 0,
            placed_at: None,
            refused_at: Vec::new(),
            hold: None,
            granted: false,
            voided: None,
            void_sent: false,
        };
        self.keys.insert(key.to_owned(), book);
    }

    /// Notes that a key made this hold, and how it stood at some moment since `sent`.
    pub(crate) fn see_hold(&mut self, key: &str, sent: Us, hold: &Hold) -> Result<(), String> {
        let Some(book) = self.keys.get_mut(key) else {
            return Err(format!("a hold for a key that nobody sent: {hold:?}"));
        };
        if book.hold.get_or_insert_with(|| hold.id.clone()) != &hold.id {
            return Err(format!("key {key} made two holds: {:?} and {}", book.hold, hold.id));
        }
        if hold.quantity != book.quantity
            || hold.buyer.as_ref() != Some(&book.buyer)
            || hold.reference.as_deref() != Some(key)
        {
            return Err(format!("the hold of key {key} is not what was asked: {hold:?}"));
        }
        let known = self.holds.entry(hold.id.clone()).or_default();
        let ended = matches!(hold.state, HoldState::Released | HoldState::Expired);
        if ended || hold.state == HoldState::Returned {
            known.gone_by.get_or_insert_with(moment);
        }
        known.check(sent, hold)
    }

    /// Notes what an attempt to place was told.
    pub(crate) fn place_told(&mut self, key: &str, sent: Us, told: &Told) -> Result<(), String> {
        let answer = match told {
            Told::Refused => return Ok(()),
            Told::Lost => {
                self.keys.get_mut(key).expect("opened").unknown += 1;
                return Ok(());
            }
            Told::Answer(answer) => answer,
        };
        self.place_answered(key, sent, answer)
    }

    /// Notes one answer to a placement.
    pub(crate) fn place_answered(
        &mut self,
        key: &str,
        sent: Us,
        answer: &Answer,
    ) -> Result<(), String> {
        let book = self.keys.get_mut(key).expect("opened");
        let (item, quantity) = (book.item, book.quantity);
        if !answer.is_definite() {
            book.unknown += 1;
            return Ok(());
        }
        if matches!(answer.status, 200 | 201) {
            if book.voided.is_some_and(|since| since < sent) {
                return Err(format!("key {key} was voided and granted afterwards"));
            }
            let is_new = answer.status == 201 && !answer.replayed;
            if is_new && std::mem::replace(&mut book.granted, true) {
                return Err(format!("key {key} was granted anew twice"));
            }
            if is_new {
                self.grants.push((item, sent, moment()));
            }
            if is_new {
                book.placed_at = answer.commit.map(|commit| (commit.shard, commit.index));
            }
            let hold = hold_of(&answer.body)
                .ok_or_else(|| format!("a grant without a hold: {}", answer.body))?;
            return self.see_hold(key, sent, &hold);
        }
        if let Some(hold) = answer.body.get("hold").and_then(hold_of) {
            return self.see_hold(key, sent, &hold);
        }
        if answer.status == 409 {
            book.refused_at.extend(answer.commit.map(|commit| (commit.shard, commit.index)));
        }
        let wanted = match answer.slug() {
            // What other regions keep is free and not for everybody.
            "sold-out" if self.walled.contains(&item) => return Ok(()),
            "sold-out" => 1,
            // Of a spread item it claims nothing: stock may be on its way.
            "insufficient-stock" if self.spread.contains(&item) => return Ok(()),
            "insufficient-stock" => quantity,
            "key-voided" if !book.void_sent => {
                return Err(format!("key {key} is called voided and nobody voided it"));
            }
            _ => return Ok(()),
        };
        let words = format!("{} for {key}: {}", answer.slug(), answer.body);
        self.refusals.push(Refusal { item, sent, answered: moment(), wanted, words });
        Ok(())
    }
}

impl HoldBook {
    /// Compares a sight of the hold with what was acknowledged of it before it was asked for.
    fn check(&self, sent: Us, hold: &Hold) -> Result<(), String> {
        let state = hold.state;
        let sold = self.confirmed.is_some() && self.confirmed_since < sent;
        if sold && !matches!(state, HoldState::Sold | HoldState::Returned) {
            return Err(format!("a sale was acknowledged and is lost: {hold:?}"));
        }
        if self.released && self.released_since < sent && state != HoldState::Released {
            return Err(format!("a release was acknowledged and is lost: {hold:?}"));
        }
        Ok(())
    }

    /// Compares the hold at the end with everything that was said of it.
    pub(crate) fn check_end(&self, hold: &Hold) -> Result<(), String> {
        self.check(Us::MAX, hold)?;
        let is_sale = matches!(hold.state, HoldState::Sold | HoldState::Returned);
        if is_sale && self.confirmed.is_none() && !self.confirm_maybe {
            return Err(format!("sold, and no confirm can have done it: {hold:?} {self:?}"));
        }
        if hold.state == HoldState::Released && !self.released && !self.release_maybe {
            return Err(format!("released, and nobody released it: {hold:?} {self:?}"));
        }
        if let Some(sold) = self.confirmed {
            let back = sold.saturating_sub(hold.sold);
            if hold.sold > sold || back < self.returned || back > self.returned + self.return_maybe
            {
                return Err(format!("units of a sale do not add up: {hold:?} {self:?}"));
            }
        }
        Ok(())
    }
}

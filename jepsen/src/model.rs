//! The suite's own model of an item with one bucket: what each operation must answer and do, one
//! after the other. Written from the contract, not from Holdfast's code.
//!
//! Time is not in it: that a hold expires is a step of its own, which the caller takes when it may.

use crate::dice::mix;

/// What a key of the item has made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slot {
    /// Nothing.
    Free,
    /// Given up.
    Voided,
    Held,
    Sold {
        units: u64,
    },
    Released,
    Expired,
    Returned,
}

/// A key: who asks with it, and for how much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ask {
    /// Which key, by number.
    pub(crate) key: usize,
    /// Which buyer, by number; `None` is nobody.
    pub(crate) buyer: Option<usize>,
    pub(crate) quantity: u64,
}

/// An operation on the item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Place(Ask),
    Confirm {
        key: usize,
        quantity: Option<u64>,
        reacquire: bool,
    },
    Release {
        key: usize,
    },
    /// Always of everything, and always with one key for each hold.
    Return {
        key: usize,
    },
    Extend {
        key: usize,
    },
    Void(Ask),
    Receipt {
        key: usize,
    },
    /// Reads the hold of a key.
    Look {
        key: usize,
    },
    Stock,
    /// An adjustment, by number: each has one effect, however often it is asked.
    Adjust {
        number: usize,
        delta: i64,
    },
    /// The hold's deadline passes. Nobody asks for it.
    Expire {
        key: usize,
    },
}

/// What an operation answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reply {
    /// The hold stands so now.
    Hold(Slot),
    Voided,
    NotFound,
    Stock {
        available: u64,
        held: u64,
        sold: u64,
        total: u64,
    },
    Done,
    /// Nothing at all is left.
    SoldOut,
    /// Less is left than asked for.
    Insufficient,
    BuyerLimit,
    KeyVoided,
    KeyReused,
    /// The hold ended so, and the operation does not fit.
    Ended(Slot),
    NotSold,
    Committed,
    /// A field does not fit the hold.
    Invalid,
    /// It cannot happen now.
    Impossible,
}

/// An item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) available: u64,
    pub(crate) held: u64,
    pub(crate) sold: u64,
    pub(crate) total: u64,
    limit: Option<u64>,
    slots: Vec<(Slot, Ask)>,
    used: Vec<u64>,
    adjusted: Vec<bool>,
    hash: u128,
}

fn wide(seed: u64) -> u128 {
    let low = mix(seed);
    (u128::from(mix(low ^ 0x5851_f42d_4c95_7f2d)) << 64) | u128::from(low)
}

fn slot_hash(key: usize, slot: Slot) -> u128 {
    let (code, units) = match slot {
        Slot::Free => return 0,
        Slot::Voided => (1, 0),
        Slot::Held => (2, 0),
        Slot::Sold { units } => (3, units),
        Slot::Released => (4, 0),
        Slot::Expired => (5, 0),
        Slot::Returned => (6, 0),
    };
    wide(mix(key as u64).wrapping_add(code) ^ mix(units).rotate_left(17))
}

impl Item {
    /// A new item with room for so many keys, buyers and adjustments.
    pub(crate) fn new(total: u64, limit: Option<u64>, keys: usize, buyers: usize) -> Item {
        let nobody = Ask { key: 0, buyer: None, quantity: 0 };
        Item {
            available: total,
            held: 0,
            sold: 0,
            total,
            limit,
            slots: vec![(Slot::Free, nobody); keys],
            used: vec![0; buyers],
            adjusted: Vec::new(),
            hash: 0,
        }
    }

    /// Tells states apart: the figures follow from the slots and the total.
    pub(crate) fn fingerprint(&self) -> u128 {
        self.hash ^ wide(self.total ^ 0xadad)
    }

    /// How the hold of a key stands.
    pub(crate) fn slot(&self, key: usize) -> Slot {
        self.slots[key].0
    }

    /// What the key's hold was placed for.
    pub(crate) fn ask(&self, key: usize) -> Ask {
        self.slots[key].1
    }

    fn set(&mut self, key: usize, slot: Slot) {
        self.hash ^= slot_hash(key, self.slots[key].0) ^ slot_hash(key, slot);
        self.slots[key].0 = slot;
    }

    fn use_up(&mut self, buyer: Option<usize>, units: u64) {
        if let Some(buyer) = buyer {
            self.used[buyer] += units;
        }
    }

    fn give_back(&mut self, buyer: Option<usize>, units: u64) {
        if let Some(buyer) = buyer {
            self.used[buyer] -= units;
        }
    }

    /// Why so many units cannot be given to this buyer now.
    fn refuses(&self, buyer: Option<usize>, quantity: u64) -> Option<Reply> {
        let used = buyer.map_or(0, |buyer| self.used[buyer]);
        if self.limit.is_some_and(|limit| used + quantity > limit) {
            return Some(Reply::BuyerLimit);
        }
        match self.available {
            0 => Some(Reply::SoldOut),
            left if left < quantity => Some(Reply::Insufficient),
            _ => None,
        }
    }

    /// Does one operation.
    pub(crate) fn step(&mut self, step: Step) -> Reply {
        match step {
            Step::Place(ask) => self.place(ask),
            Step::Confirm { key, quantity, reacquire } => self.confirm(key, quantity, reacquire),
            Step::Release { key } => self.release(key),
            Step::Return { key } => self.give_up_sale(key),
            Step::Extend { key } if self.slot(key) == Slot::Held => Reply::Hold(Slot::Held),
            Step::Extend { key } => unless_free(self.slot(key)),
            Step::Void(ask) => {
                if self.slot(ask.key) == Slot::Free {
                    self.slots[ask.key].1 = ask;
                    self.set(ask.key, Slot::Voided);
                }
                self.receipt(ask.key)
            }
            Step::Receipt { key } => self.receipt(key),
            Step::Look { key } if self.slot(key) == Slot::Voided => Reply::NotFound,
            Step::Look { key } => self.receipt(key),
            Step::Stock => Reply::Stock {
                available: self.available,
                held: self.held,
                sold: self.sold,
                total: self.total,
            },
            Step::Adjust { number, delta } => self.adjust(number, delta),
            Step::Expire { key } => self.expire(key),
        }
    }

    /// What became of a key.
    fn receipt(&self, key: usize) -> Reply {
        match self.slot(key) {
            Slot::Free => Reply::NotFound,
            Slot::Voided => Reply::Voided,
            made @ (Slot::Held
            | Slot::Sold { .. }
            | Slot::Released
            | Slot::Expired
            | Slot::Returned) => Reply::Hold(made),
        }
    }

    fn place(&mut self, ask: Ask) -> Reply {
        let slot = self.slot(ask.key);
        let differs = self.ask(ask.key).quantity != ask.quantity;
        match slot {
            Slot::Free => {}
            Slot::Voided => return Reply::KeyVoided,
            Slot::Held | Slot::Sold { .. } | Slot::Released | Slot::Expired | Slot::Returned
                if differs =>
            {
                return Reply::KeyReused;
            }
            Slot::Held => return Reply::Hold(Slot::Held),
            Slot::Sold { .. } | Slot::Released | Slot::Expired | Slot::Returned => {
                return Reply::Ended(slot);
            }
        }
        if let Some(no) = self.refuses(ask.buyer, ask.quantity) {
            return no;
        }
        self.available -= ask.quantity;
        self.held += ask.quantity;
        self.use_up(ask.buyer, ask.quantity);
        self.slots[ask.key].1 = ask;
        self.set(ask.key, Slot::Held);
        Reply::Hold(Slot::Held)
    }

    fn confirm(&mut self, key: usize, quantity: Option<u64>, reacquire: bool) -> Reply {
        let (slot, ask) = self.slots[key];
        let units = quantity.unwrap_or(ask.quantity);
        match slot {
            Slot::Sold { units: sold } if quantity.is_some_and(|asked| asked != sold) => {
                Reply::Invalid
            }
            Slot::Sold { .. } => Reply::Hold(slot),
            Slot::Held if units > ask.quantity => Reply::Invalid,
            Slot::Held => {
                self.held -= ask.quantity;
                self.sold += units;
                self.available += ask.quantity - units;
                self.give_back(ask.buyer, ask.quantity - units);
                self.set(key, Slot::Sold { units });
                Reply::Hold(Slot::Sold { units })
            }
            Slot::Expired if reacquire && units > ask.quantity => Reply::Invalid,
            Slot::Expired if reacquire => {
                if let Some(no) = self.refuses(ask.buyer, units) {
                    return no;
                }
                self.available -= units;
                self.sold += units;
                self.use_up(ask.buyer, units);
                self.set(key, Slot::Sold { units });
                Reply::Hold(Slot::Sold { units })
            }
            Slot::Free | Slot::Voided | Slot::Released | Slot::Expired | Slot::Returned => {
                unless_free(slot)
            }
        }
    }

    fn release(&mut self, key: usize) -> Reply {
        let (slot, ask) = self.slots[key];
        match slot {
            Slot::Held => {
                self.held -= ask.quantity;
                self.available += ask.quantity;
                self.give_back(ask.buyer, ask.quantity);
                self.set(key, Slot::Released);
                Reply::Hold(Slot::Released)
            }
            Slot::Expired => {
                self.set(key, Slot::Released);
                Reply::Hold(Slot::Released)
            }
            Slot::Released => Reply::Hold(Slot::Released),
            Slot::Free | Slot::Voided | Slot::Sold { .. } | Slot::Returned => unless_free(slot),
        }
    }

    fn give_up_sale(&mut self, key: usize) -> Reply {
        let (slot, ask) = self.slots[key];
        match slot {
            Slot::Sold { units } => {
                self.sold -= units;
                self.available += units;
                self.give_back(ask.buyer, units);
                self.set(key, Slot::Returned);
                Reply::Hold(Slot::Returned)
            }
            Slot::Returned => Reply::Hold(Slot::Returned),
            Slot::Held => Reply::NotSold,
            Slot::Free | Slot::Voided | Slot::Released | Slot::Expired => unless_free(slot),
        }
    }

    fn adjust(&mut self, number: usize, delta: i64) -> Reply {
        if self.adjusted.len() <= number {
            self.adjusted.resize(number + 1, false);
        }
        if self.adjusted[number] {
            return Reply::Done;
        }
        let units = delta.unsigned_abs();
        if delta < 0 && self.available < units {
            return Reply::Committed;
        }
        if delta < 0 {
            self.available -= units;
            self.total -= units;
        } else {
            self.available += units;
            self.total += units;
        }
        self.adjusted[number] = true;
        self.hash ^= wide(mix(number as u64) ^ 0xadd);
        Reply::Done
    }

    fn expire(&mut self, key: usize) -> Reply {
        let (slot, ask) = self.slots[key];
        if slot != Slot::Held {
            return Reply::Impossible;
        }
        self.held -= ask.quantity;
        self.available += ask.quantity;
        self.give_back(ask.buyer, ask.quantity);
        self.set(key, Slot::Expired);
        Reply::Done
    }
}

fn unless_free(slot: Slot) -> Reply {
    match slot {
        Slot::Free | Slot::Voided => Reply::NotFound,
        Slot::Held | Slot::Sold { .. } | Slot::Released | Slot::Expired | Slot::Returned => {
            Reply::Ended(slot)
        }
    }
}

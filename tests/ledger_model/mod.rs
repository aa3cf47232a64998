//! An independent model of the ledger: items of one bucket, written naively from the laws.
//!
//! Promises: vectors and linear scans only, sums computed anew from the holds at each question, no
//! code of the ledger but the types of its questions. It answers in the words of the golden scripts
//! (hold number 3 is `h3`). It never sweeps: a hold is dead when its deadline has come (law 7).
//! It does not model forgetting, sale windows, references and transfers; golden scripts do.

use holdfast::ledger::*;

pub(crate) mod buckets;
pub(crate) mod crowds;
pub(crate) mod exchange;
pub(crate) mod hostile;
mod hostile_spread;
pub(crate) mod laws;
pub(crate) mod sequences;
mod spread_model;
pub(crate) mod spreads;
mod told;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Held,
    Sold,
    Released,
    Returned,
}

struct Hold {
    id: Option<HoldId>,
    item: u64,
    placed: Place,
    state: State,
    sold: u64,
    confirmed: u64,
    at: u64,
    deadline: u64,
    extends: u32,
    rules: HoldRules,
    keys: Vec<(&'static str, String, Option<u64>)>,
}

struct Item {
    number: u64,
    name: ItemName,
    total: u64,
    mode: Mode,
    definition: Definition,
    changes: u64,
    adjusted: Vec<(String, Change)>,
    gone: bool,
}

/// The model: everything that ever was, in order.
#[derive(Default)]
pub(crate) struct Model {
    now: u64,
    items: Vec<Item>,
    holds: Vec<Hold>,
    voids: Vec<(u64, Option<String>, String)>,
    revisions: Vec<(u64, u64, u64)>,
}

/// What is answered; `Err` is a refusal (or what is known already) that ends the matter early.
type Said = Result<String, String>;

fn no<T>(why: &str) -> Result<T, String> {
    Err(format!("refused {why}"))
}

impl Model {
    /// Answers one command.
    pub(crate) fn answer(&mut self, command: &Command) -> String {
        let said = match command {
            Command::Define(define) => self.define(define),
            Command::Adjust(adjust) => self.adjust(adjust),
            Command::SetMode(set) => self.set_mode(set),
            Command::Retire(retire) => self.retire(&retire.name),
            Command::Place(place) => self.place(place),
            Command::Extend(extend) => self.extend(extend),
            Command::Confirm(confirm) => self.confirm(confirm),
            Command::Release(release) => self.release(release),
            Command::Return(back) => self.bring_back(back),
            Command::Void(void) => self.void(&void.scope),
            Command::Advance => Ok("advanced".into()),
            Command::OpenBucket(_)
            | Command::SendStock(_)
            | Command::AcceptStock(_)
            | Command::SettleStock(_)
            | Command::DefineSpread(_)
            | Command::SetLayout(_)
            | Command::Configure(_)
            | Command::CopyAnswered(_)
            | Command::EraseCopy(_)
            | Command::LowerBegin(_)
            | Command::LowerCommit(_)
            | Command::LowerAbort(_)
            | Command::DeleteBegin(_)
            | Command::DeleteAbort(_)
            | Command::DeleteCommit(_)
            | Command::MoveStock(_)
            | Command::SetRoster(_)
            | Command::SetSchema(_) => unreachable!("not modelled"),
        };
        said.unwrap_or_else(|refused| refused)
    }

    fn define(&mut self, define: &Define) -> Said {
        let definition = define.definition.clone();
        let Ok(at) = self.find(&define.name) else {
            let Some(total) = define.total else { return no("invalid field=total") };
            let (number, name) = (self.items.len() as u64 + 1, define.name.clone());
            let (mode, changes, adjusted, gone) = (Mode::Open, 0, Vec::new(), false);
            let item = Item { number, name, total, mode, definition, changes, adjusted, gone };
            self.items.push(item);
            return Ok(self.item(self.items.len() - 1, " created"));
        };
        let item = &mut self.items[at];
        if define.total.is_some_and(|total| total != item.total) {
            return no(&format!("use-adjustments total={}", item.total));
        }
        if item.definition == definition {
            return Ok(self.item(at, " replayed"));
        }
        item.definition = definition;
        Ok(self.changed(at))
    }

    fn adjust(&mut self, adjust: &Adjust) -> Said {
        let at = self.find(&adjust.name)?;
        let item = &self.items[at];
        if let Some((_, change)) = item.adjusted.iter().find(|(key, _)| *key == adjust.key) {
            let field = match (adjust.change, *change) {
                (now, before) if now == before => return Ok(self.item(at, " replayed")),
                (Change::Set { total, .. }, Change::Set { total: was, .. }) if total == was => {
                    "if_revision"
                }
                (Change::Set { .. }, _) => "set_total",
                (Change::Raise(_) | Change::Lower(_), _) => "delta",
                (
                    Change::RaiseIn { .. }
                    | Change::LowerIn { .. }
                    | Change::Claim(_)
                    | Change::Move(_),
                    _,
                ) => {
                    unreachable!("not modelled")
                }
            };
            return no(&format!("key-reused field={field}"));
        }
        let total = i128::from(item.total);
        let target = match adjust.change {
            Change::Raise(units) => total + i128::from(units),
            Change::Lower(units) => total - i128::from(units),
            Change::RaiseIn { .. }
            | Change::LowerIn { .. }
            | Change::Claim(_)
            | Change::Move(_) => unreachable!("not modelled"),
            Change::Set { total, if_revision } => {
                if !self.revisions.contains(&(item.number, if_revision, item.changes)) {
                    return no("revision-mismatch");
                }
                i128::from(total)
            }
        };
        let (available, held, sold, _) = self.stock(&adjust.name).expect("found above");
        let needed = total - target;
        if needed > i128::from(available) {
            let figures = format!("available={available} held={held} sold={sold}");
            return no(&format!("stock-committed needed={needed} {figures}"));
        }
        self.items[at].adjusted.push((adjust.key.clone(), adjust.change));
        if needed == 0 {
            return Ok(self.item(at, " replayed"));
        }
        self.items[at].total = u64::try_from(target).expect("not below what is held and sold");
        Ok(self.changed(at))
    }

    fn set_mode(&mut self, set: &SetMode) -> Said {
        let at = self.find(&set.name)?;
        if self.items[at].mode == set.mode {
            return Ok(self.item(at, " replayed"));
        }
        if self.items[at].mode == Mode::Closed {
            return no("item-closed");
        }
        self.items[at].mode = set.mode;
        Ok(self.changed(at))
    }

    fn retire(&mut self, name: &ItemName) -> Said {
        let at = self.find(name)?;
        let held = self.stock(name).map_or(0, |stock| stock.1);
        if held > 0 {
            return no(&format!("open-holds held={held}"));
        }
        self.items[at].gone = true;
        Ok(format!("retired number={}", self.items[at].number))
    }

    fn place(&mut self, place: &Place) -> Said {
        let item = &self.items[self.find(&place.name)?];
        let (number, rules, mode) = (item.number, item.definition.rules, item.mode);
        if self.voids.contains(&(number, place.buyer.clone(), place.key.clone())) {
            return no("key-voided");
        }
        if let Some(at) = self.placed(number, &place.buyer, &place.key) {
            let first = &self.holds[at].placed;
            if first.quantity != place.quantity {
                return no("key-reused field=quantity");
            }
            if first.ttl_ms != place.ttl_ms {
                return no("key-reused field=ttl_ms");
            }
            self.live(at)?;
            return Ok(self.view(at) + " replayed");
        }
        grants(mode)?;
        self.within_limit(place, place.quantity)?;
        self.in_stock(&place.name, place.quantity)?;
        self.holds.push(Hold {
            id: None,
            item: number,
            placed: place.clone(),
            state: State::Held,
            sold: 0,
            confirmed: 0,
            at: self.now,
            deadline: self.now + place.ttl_ms.unwrap_or(rules.ttl_ms),
            extends: 0,
            rules,
            keys: Vec::new(),
        });
        Ok(self.view(self.holds.len() - 1))
    }

    fn void(&mut self, scope: &KeyScope) -> Said {
        let number = self.items[self.find(&scope.name)?].number;
        if let Some(at) = self.placed(number, &scope.buyer, &scope.key) {
            return Ok(self.view(at) + " replayed");
        }
        let void = (number, scope.buyer.clone(), scope.key.clone());
        if self.voids.contains(&void) {
            return Ok("voided replayed".into());
        }
        self.voids.push(void);
        Ok("voided".into())
    }

    fn extend(&mut self, extend: &Extend) -> Said {
        let at = self.hold(&extend.hold)?;
        let known = self.known(at, "extend", &extend.key, extend.ttl_ms)?;
        self.live(at)?;
        if known {
            return Ok(self.view(at) + " replayed");
        }
        let hold = &self.holds[at];
        let ttl = extend.ttl_ms.unwrap_or(hold.rules.ttl_ms);
        if self.mode(at) == Mode::Paused {
            return no("item-paused reason=operator");
        }
        let latest = hold.at + hold.rules.lifetime_ms_max;
        let moves = self.now + ttl > hold.deadline;
        if moves && (hold.extends == hold.rules.extends_max || self.now + ttl > latest) {
            return no(&format!("extend-budget-spent used={} latest={latest}", hold.extends));
        }
        let deadline = hold.deadline.max(self.now + ttl);
        let hold = &mut self.holds[at];
        (hold.deadline, hold.extends) = (deadline, hold.extends + u32::from(moves));
        hold.keys.push(("extend", extend.key.clone(), extend.ttl_ms));
        Ok(self.view(at))
    }

    fn confirm(&mut self, confirm: &Confirm) -> Said {
        let at = self.hold(&confirm.hold)?;
        let known = self.known(at, "confirm", &confirm.key, confirm.quantity)?;
        let hold = &self.holds[at];
        let units = confirm.quantity.unwrap_or(hold.placed.quantity);
        if hold.state == State::Sold {
            let same = known || confirm.quantity.is_none_or(|units| units == hold.confirmed);
            if !same {
                return no("invalid field=quantity");
            }
            if !known {
                self.holds[at].keys.push(("confirm", confirm.key.clone(), confirm.quantity));
            }
            return Ok(self.view(at) + " replayed");
        }
        let again = confirm.reacquire && self.dead(at);
        if !again {
            self.live(at)?;
        }
        if units > hold.placed.quantity {
            return no("invalid field=quantity");
        }
        if again {
            grants(self.mode(at))?;
            self.within_limit(&hold.placed, units)?;
            self.in_stock(&hold.placed.name, units)?;
        }
        let hold = &mut self.holds[at];
        (hold.state, hold.sold, hold.confirmed) = (State::Sold, units, units);
        hold.keys.push(("confirm", confirm.key.clone(), confirm.quantity));
        Ok(self.view(at))
    }

    fn release(&mut self, release: &Release) -> Said {
        let at = self.hold(&release.hold)?;
        if self.holds[at].state == State::Released {
            return Ok(self.view(at) + " replayed");
        }
        if !self.dead(at) {
            self.live(at)?;
        }
        self.holds[at].state = State::Released;
        Ok(self.view(at))
    }

    fn bring_back(&mut self, back: &Return) -> Said {
        let at = self.hold(&back.hold)?;
        if self.known(at, "return", &back.key, back.quantity)? {
            return Ok(self.view(at) + " replayed");
        }
        if self.holds[at].state != State::Sold {
            self.live(at)?;
            return no(&format!("not-sold: {}", self.view(at)));
        }
        let hold = &mut self.holds[at];
        let units = back.quantity.unwrap_or(hold.sold);
        if units > hold.sold {
            return no("invalid field=quantity");
        }
        hold.sold -= units;
        if hold.sold == 0 {
            hold.state = State::Returned;
        }
        hold.keys.push(("return", back.key.clone(), back.quantity));
        Ok(self.view(at))
    }
}

fn grants(mode: Mode) -> Result<(), String> {
    match mode {
        Mode::Open => Ok(()),
        Mode::Paused => no("item-paused reason=operator"),
        Mode::Closed => no("item-closed"),
    }
}

//! What the clients of the world draw to do next.

use super::{BUYERS, KEYS_MAX, Key, Task, World, id};
use crate::history::{Act, Value};
use crate::model::{Ask, Slot, Step};

impl World {
    /// Draws something to do.
    pub(super) fn draw(&mut self) -> Task {
        let thing = self.dice.index(self.things.len());
        let known = self.things[thing].keys.len();
        let any = |world: &mut World| world.dice.index(known.max(1)).min(known.saturating_sub(1));
        let roll = self.dice.below(100);
        if known == 0 || (roll < 38 && known < KEYS_MAX) {
            return self.newcomer(thing, Act::Place);
        }
        let key = any(self);
        let (act, step) = match roll {
            38..=45 => (Act::Place, Step::Place(self.ask(thing, key))),
            46..=61 => {
                let part = self.dice.percent(25).then_some(1);
                let reacquire = self.dice.percent(20);
                (Act::Confirm, Step::Confirm { key, quantity: part, reacquire })
            }
            62..=72 => (Act::Release, Step::Release { key }),
            73..=77 => (Act::Return, Step::Return { key }),
            78..=80 => (Act::Extend, Step::Extend { key }),
            81..=84 if known < KEYS_MAX => return self.newcomer(thing, Act::Void),
            85..=86 => (Act::Void, Step::Void(self.ask(thing, key))),
            87..=89 => (Act::Receipt, Step::Receipt { key }),
            90..=91 => (Act::Hold, Step::Look { key }),
            92..=93 if thing == 0 => {
                let number = self.things[0].adjusts;
                self.things[0].adjusts += 1;
                let delta = if self.dice.percent(50) { 2 } else { -1 };
                (Act::Adjust, Step::Adjust { number, delta })
            }
            _ => (Act::Stock, Step::Stock),
        };
        // Nobody works on a hold that nobody has seen.
        let on_hold =
            matches!(act, Act::Confirm | Act::Release | Act::Return | Act::Extend | Act::Hold);
        let free = matches!(self.things[thing].model.slot(key), Slot::Free | Slot::Voided);
        if on_hold && free {
            return self.task(thing, Act::Stock, Step::Stock);
        }
        self.task(thing, act, step)
    }

    fn ask(&self, thing: usize, key: usize) -> Ask {
        let known = &self.things[thing].keys[key];
        Ask { key, buyer: known.buyer, quantity: known.quantity }
    }

    fn newcomer(&mut self, thing: usize, act: Act) -> Task {
        let key = self.things[thing].keys.len();
        let buyer = Some(self.dice.index(BUYERS));
        let quantity = self.dice.between(1, 2);
        let name = format!("k{thing}-{key}");
        self.things[thing].keys.push(Key {
            name,
            buyer,
            quantity,
            placed_at: 0,
            expires_at: 0,
            revision: 0,
            sold: 0,
        });
        let ask = Ask { key, buyer, quantity };
        let step = if act == Act::Void { Step::Void(ask) } else { Step::Place(ask) };
        self.task(thing, act, step)
    }

    pub(super) fn task(&self, thing: usize, act: Act, step: Step) -> Task {
        let item = &self.things[thing];
        let mut value = Value { item: Some(item.name.clone()), ..Value::default() };
        let buyer = |key: &Key| key.buyer.map(|buyer| format!("buyer-{buyer}"));
        match step {
            Step::Place(Ask { key, .. }) | Step::Void(Ask { key, .. }) | Step::Receipt { key } => {
                let key = &item.keys[key];
                value.key = Some(key.name.clone());
                value.buyer = buyer(key);
                value.quantity = (act == Act::Place).then_some(key.quantity);
            }
            Step::Confirm { key, quantity, reacquire } => {
                value.hold = Some(id(thing, key));
                value.key = Some(format!("pay-{key}-{quantity:?}-{reacquire}"));
                value.quantity = quantity;
                value.reacquire = reacquire.then_some(true);
            }
            Step::Release { key }
            | Step::Return { key }
            | Step::Extend { key }
            | Step::Look { key } => {
                value.hold = Some(id(thing, key));
                value.key = Some(format!("{act:?}-{key}"));
            }
            Step::Adjust { number, delta } => {
                value.key = Some(format!("adjust-{number}"));
                value.delta = Some(delta);
            }
            Step::Stock => value.consistency = Some("linearizable".to_owned()),
            Step::Expire { .. } => unreachable!("nobody asks for it"),
        }
        let (arrives, answers) = (true, true);
        Task { act, thing, step, value, invoked: 0, arrives, answers, told: None }
    }
}

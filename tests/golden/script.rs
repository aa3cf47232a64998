//! The language of the golden scripts: parses a line, asks the ledger, says what it answered.
//!
//! A script is read from top to bottom. `#` begins a comment. Lines after a command that begin with
//! `->` are what the ledger answered, compared to the letter (`GOLDEN=write` rewrites them).
//!
//! ```text
//! settings sweep_max=2 …        before anything else; the cluster has one shard, or `shards=3` …
//! at 1000                       stamp of the entries from here on, ms (also 10m, 24h+5m, …)
//! on home | on away | on away2  which shard the next lines go to (with `shards=3`)
//! define shop/x total=10 …      a command; one entry each, or one entry for all of `entry … end`
//! place shop/x key=k1 qty=2 as=A
//! hold A | receipt … | item … | items … | availability … | audit … | holds … | sold_out …
//! now | next_due | figures      a question
//! foresee place …               what the gate would learn of that command
//! restart                       goes on with a ledger loaded from the pages of a whole cut
//! corrupt shop/x units=5        breaks the item's law on purpose; an empty entry follows
//! lawless shop/x                the item's law may be broken from here on (units nobody sent)
//! ```
//!
//! After every entry the runner checks, unasked: the laws on every item (law 1 over both shards
//! too), that a ledger loaded from a whole cut has the same digest, and that what was foreseen of a
//! lone command is what was answered.

use std::collections::BTreeMap;

use holdfast::ledger::*;

use crate::laws;
use crate::words;

#[path = "spread.rs"]
mod spread;

/// A script's world: some shards' ledgers and the names that the script gave.
pub(crate) struct World {
    settings: Settings,
    shards: Vec<Shard>,
    on: usize,
    at: UnixMs,
    items: Vec<ItemName>,
    numbers: BTreeMap<ItemName, (ShardId, ItemNumber)>,
    holds: Vec<(String, HoldId)>,
    entry: Option<Vec<(Command, Option<String>)>>,
    /// Items whose law is broken on purpose.
    lawless: Vec<ItemName>,
    /// Images of copies that the script has named.
    images: Vec<(String, Configure)>,
    /// What each shard's copy of each item answered last.
    copies: BTreeMap<(ItemRef, ShardId), CopyState>,
}

struct Shard {
    id: ShardId,
    ledger: Ledger,
    index: u64,
}

/// One line of a script, cut at spaces: a verb, places and `name=value` words.
struct Line<'a> {
    verb: &'a str,
    places: Vec<&'a str>,
    values: BTreeMap<&'a str, &'a str>,
}

impl<'a> Line<'a> {
    fn parse(text: &'a str) -> Result<Line<'a>, String> {
        let mut words = text.split_whitespace();
        let verb = words.next().ok_or("an empty line is no command")?;
        let mut line = Line { verb, places: Vec::new(), values: BTreeMap::new() };
        for word in words {
            match word.split_once('=') {
                Some((name, value)) => {
                    line.values.insert(name, value);
                }
                None => line.places.push(word),
            }
        }
        Ok(line)
    }

    fn place(&self, at: usize) -> Result<&'a str, String> {
        self.places.get(at).copied().ok_or(format!("`{}` wants {} words", self.verb, at + 1))
    }

    fn text(&self, name: &str) -> Option<String> {
        self.values.get(name).map(|value| value.to_string())
    }

    fn number(&self, name: &str) -> Result<Option<u64>, String> {
        self.values.get(name).map(|value| number(value)).transpose()
    }

    fn number_or(&self, name: &str, default: u64) -> Result<u64, String> {
        Ok(self.number(name)?.unwrap_or(default))
    }

    fn needed(&self, name: &str) -> Result<u64, String> {
        self.number(name)?.ok_or(format!("`{}` wants {name}=", self.verb))
    }

    fn flag(&self, name: &str) -> bool {
        self.places.contains(&name)
    }

    fn item(&self) -> Result<ItemName, String> {
        let (tenant, item) = self.place(0)?.split_once('/').ok_or("an item is tenant/item")?;
        Ok(ItemName { tenant: tenant.to_string(), item: item.to_string() })
    }
}

/// Reads `max`, `u64max`, or a sum such as `24h+5m+1`: numbers with an optional unit of time.
fn number(text: &str) -> Result<u64, String> {
    let mut sum = 0_u64;
    for part in text.split('+') {
        let digits = part.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = match &part[digits.len()..] {
            "" => 1,
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "max" => {
                sum += QUANTITY_MAX;
                continue;
            }
            "umax" => return Ok(u64::MAX),
            unit => return Err(format!("no such unit: {unit}")),
        };
        sum += unit * digits.parse::<u64>().map_err(|e| format!("{text}: {e}"))?;
    }
    Ok(sum)
}

impl World {
    /// Returns a world of one empty shard.
    pub(crate) fn new() -> World {
        let mut world = World {
            settings: laws::settings(1),
            shards: Vec::new(),
            on: 0,
            at: UnixMs(0),
            items: Vec::new(),
            numbers: BTreeMap::new(),
            holds: Vec::new(),
            entry: None,
            lawless: Vec::new(),
            images: Vec::new(),
            copies: BTreeMap::new(),
        };
        world.found_shards();
        world
    }

    fn found_shards(&mut self) {
        self.shards = (0..self.settings.shards)
            .map(|id| Shard {
                id: ShardId(id),
                ledger: Ledger::new(ShardId(id), self.settings.clone()),
                index: 0,
            })
            .collect();
    }

    /// Runs one line and returns what was answered: nothing for a line that only sets the scene.
    pub(crate) fn run(&mut self, text: &str) -> Result<Vec<String>, String> {
        let line = Line::parse(text)?;
        match line.verb {
            "settings" => self.settings_line(&line)?,
            "at" => self.at = UnixMs(number(line.place(0)?)?),
            "on" => self.on_line(&line)?,
            "restart" => {
                let shard = &mut self.shards[self.on];
                shard.ledger = laws::reload(shard.id, &self.settings, &mut shard.ledger);
            }
            "lawless" => self.lawless.push(line.item()?),
            "corrupt" => {
                let (name, units) = (line.item()?, line.needed("units")?);
                self.shards[self.on].ledger.corrupt_for_test(&name, units);
                self.lawless.push(name);
                return self.apply(Vec::new());
            }
            "entry" => self.entry = Some(Vec::new()),
            "end" => {
                let commands = self.entry.take().ok_or("`end` without `entry`")?;
                return self.apply(commands);
            }
            "foresee" => {
                let (_, rest) = text.split_once("foresee").ok_or("unreachable")?;
                let command = self.command(&Line::parse(rest)?)?;
                let foreseen = self.shards[self.on].ledger.foresee(&command);
                return Ok(vec![words::foreseen(&foreseen, &self.naming())]);
            }
            "now" => return Ok(vec![self.shards[self.on].ledger.now().to_string()]),
            "next_due" => {
                let due = self.shards[self.on].ledger.next_due();
                return Ok(vec![due.map_or("none".to_string(), |at| at.to_string())]);
            }
            "figures" => return Ok(vec![self.figures()]),
            "image" => return self.name_image(&line),
            "hold" | "receipt" | "item" | "items" | "availability" | "audit" | "holds"
            | "sold_out" | "levels" | "duties" => {
                let query = self.query(&line)?;
                let found = self.shards[self.on].ledger.query(&query);
                return Ok(words::found(&found, &self.naming()));
            }
            _ => {
                let command = self.command(&line)?;
                let named = (command, line.text("as"));
                match &mut self.entry {
                    Some(entry) => entry.push(named),
                    None => return self.apply(vec![named]),
                }
            }
        }
        Ok(Vec::new())
    }

    fn settings_line(&mut self, line: &Line) -> Result<(), String> {
        let s = &mut self.settings;
        s.shards = line.number_or("shards", 1)? as u16;
        s.slots = line.number_or("slots", 4)? as u16;
        s.sweep_max = line.number_or("sweep_max", 512)? as u32;
        s.receipt_retention_ms = line.number_or("receipt_retention", 86_400_000)?;
        s.sold_retention_ms = line.number_or("sold_retention", 90 * 86_400_000)?;
        self.found_shards();
        Ok(())
    }

    fn on_line(&mut self, line: &Line) -> Result<(), String> {
        let name = line.values.get("item").copied().unwrap_or("shop/x");
        let (tenant, item) = name.split_once('/').ok_or("an item is tenant/item")?;
        let name = ItemName { tenant: tenant.to_string(), item: item.to_string() };
        self.on = usize::from(self.shard_called(&name, line.place(0)?)?.0);
        Ok(())
    }

    /// The shard that a script calls home, away, away2, … for an item.
    fn shard_called(&self, name: &ItemName, word: &str) -> Result<ShardId, String> {
        let home = home_shard(name.borrowed(), self.settings.shards).0;
        let steps = match word.strip_prefix("away") {
            Some("") => 1,
            Some(steps) => steps.parse().map_err(|e| format!("{word}: {e}"))?,
            None if word == "home" => 0,
            None => return Err(format!("no such shard: {word}")),
        };
        if steps >= self.settings.shards {
            return Err(format!("there are not so many shards: {word}"));
        }
        Ok(ShardId((home + steps) % self.settings.shards))
    }

    fn naming(&self) -> impl Fn(&HoldId) -> String + use<> {
        let holds = self.holds.clone();
        move |id| match holds.iter().find(|(_, known)| known == id) {
            Some((name, _)) => name.clone(),
            None => "unnamed".to_string(),
        }
    }

    fn apply(&mut self, commands: Vec<(Command, Option<String>)>) -> Result<Vec<String>, String> {
        let (commands, names): (Vec<_>, Vec<_>) = commands.into_iter().unzip();
        let shard = &mut self.shards[self.on];
        let foreseen = match commands.as_slice() {
            [only] if self.at <= shard.ledger.now() => Some(shard.ledger.foresee(only)),
            _ => None,
        };
        shard.index += 1;
        let batch = Batch { stamp: self.at, commands };
        let answers = batch.shown(shard.ledger.apply(LogIndex(shard.index), &batch));
        assert_eq!(answers.len(), batch.commands.len(), "answered one for one");
        match &foreseen {
            Some(Foreseen::Answer(known)) => assert_eq!(known, &answers[0], "foreseen otherwise"),
            Some(Foreseen::Admit(_)) => {
                assert!(!words::is_about_stock(&answers[0]), "admitted, then {:?}", answers[0]);
            }
            None => {}
        }
        let home = shard.id;
        for (answer, name) in answers.iter().zip(names) {
            match (answer, name) {
                (Answer::Hold { hold, .. }, Some(name)) => {
                    self.holds.retain(|(known, _)| *known != name);
                    self.holds.push((name, hold.id));
                }
                (Answer::Item { item, .. }, _) => {
                    self.numbers.insert(item.name.clone(), (home, item.number));
                    if !self.items.contains(&item.name) {
                        self.items.push(item.name.clone());
                    }
                }
                (_, _) => {}
            }
        }
        for (command, answer) in batch.commands.iter().zip(&answers) {
            if let (Command::Configure(configure), Answer::Copy(state)) = (command, answer) {
                self.copies.insert((configure.item, home), *state);
            }
            if let (Command::EraseCopy(erase), Answer::Copy(state)) = (command, answer) {
                self.copies.insert((erase.item, home), *state);
            }
        }
        self.check_laws();
        Ok(answers.iter().map(|answer| words::answer(answer, &self.naming())).collect())
    }

    fn check_laws(&mut self) {
        for name in self.items.iter().filter(|name| !self.lawless.contains(name)) {
            let mut audits: Vec<Audit> =
                self.shards.iter().filter_map(|s| laws::audit(&s.ledger, name)).collect();
            // A copy of an earlier life of the item may not be erased yet.
            let home = audits.iter().find(|audit| audit.total.is_some()).map(|audit| audit.number);
            audits.retain(|audit| Some(audit.number) == home);
            if home.is_some() {
                laws::item_adds_up(&audits);
            }
            self.check_floors(name);
        }
        for shard in &mut self.shards {
            laws::reload(shard.id, &self.settings, &mut shard.ledger);
        }
    }

    fn figures(&self) -> String {
        let f = self.shards[self.on].ledger.figures();
        format!(
            "items={} holds: held={} sold={} ended={}; units: held={} sold={} available={}",
            f.items,
            f.holds_held,
            f.holds_sold,
            f.holds_ended,
            f.units_held,
            f.units_sold,
            f.units_available
        )
    }

    /// Finds a hold by its name; `tag=wrong`, `seq=+1` and `slot=+1` make it another's guess.
    fn hold(&self, line: &Line) -> Result<HoldId, String> {
        let name = line.place(0)?;
        let known = self.holds.iter().find(|(known, _)| known == name);
        let mut id = known.ok_or(format!("no hold is called {name}"))?.1;
        if line.values.get("tag") == Some(&"wrong") {
            id.tag ^= 1;
        }
        id.sequence += line.number_or("seq_plus", 0)?;
        id.bucket.0 += line.number_or("bucket_plus", 0)? as u16;
        id.item.0 += line.number_or("item_plus", 0)?;
        id.slot += line.number_or("slot_plus", 0)? as u16;
        id.region.0 += line.number_or("region_plus", 0)? as u16;
        Ok(id)
    }

    fn tenant(line: &Line) -> String {
        line.text("tenant").unwrap_or("shop".to_string())
    }

    fn scope(line: &Line) -> Result<KeyScope, String> {
        Ok(KeyScope {
            name: line.item()?,
            region: line.text("region"),
            buyer: line.text("buyer"),
            key: line.text("key").ok_or("a key is wanted")?,
        })
    }

    fn query(&self, line: &Line) -> Result<Query, String> {
        let limit = line.number_or("limit", 100)? as u32;
        Ok(match line.verb {
            "hold" => Query::Hold { id: self.hold(line)?, tenant: World::tenant(line) },
            "receipt" => Query::Receipt(World::scope(line)?),
            "item" => Query::Item(line.item()?),
            "items" => {
                let tenant = line.place(0)?.to_string();
                Query::Items { tenant, after: line.text("after"), limit }
            }
            "availability" => Query::Availability(line.item()?),
            "audit" => Query::Audit(line.item()?),
            "holds" => Query::Holds {
                name: line.item()?,
                buyer: line.text("buyer"),
                state: line.values.get("state").map(|word| state(word)).transpose()?,
                after: None,
                limit,
            },
            "sold_out" => Query::SoldOut {
                tenant: line.place(0)?.to_string(),
                after: line.text("after"),
                limit,
            },
            "levels" => Query::Levels(self.item_ref(line)?),
            "duties" => Query::Duties { after: None, limit },
            other => return Err(format!("no such question: {other}")),
        })
    }

    fn command(&self, line: &Line) -> Result<Command, String> {
        let key = line.text("key").unwrap_or_default();
        let tenant = World::tenant(line);
        let set = |mode| Ok::<_, String>(Command::SetMode(SetMode { name: line.item()?, mode }));
        Ok(match line.verb {
            "define" => Command::Define(self.define(line)?),
            "adjust" => Command::Adjust(self.adjust(line, key)?),
            "pause" => set(Mode::Paused)?,
            "resume" => set(Mode::Open)?,
            "close" => set(Mode::Closed)?,
            "retire" => Command::Retire(Retire { name: line.item()? }),
            "place" => Command::Place(Place {
                name: line.item()?,
                region: line.text("region"),
                buyer: line.text("buyer"),
                key,
                quantity: line.number_or("qty", 1)?,
                ttl_ms: line.number("ttl")?,
                reference: line.text("ref"),
            }),
            "extend" => {
                let (hold, ttl_ms) = (self.hold(line)?, line.number("ttl")?);
                Command::Extend(Extend { hold, tenant, key, ttl_ms })
            }
            "confirm" => Command::Confirm(Confirm {
                hold: self.hold(line)?,
                tenant,
                key,
                quantity: line.number("qty")?,
                reacquire: line.flag("reacquire"),
                reference: line.text("ref"),
            }),
            "release" => {
                let (hold, reason) = (self.hold(line)?, line.text("reason"));
                Command::Release(Release { hold, tenant, key, reason })
            }
            "return" => {
                let (hold, quantity) = (self.hold(line)?, line.number("qty")?);
                Command::Return(Return { hold, tenant, key, quantity })
            }
            "void" => Command::Void(Void { scope: World::scope(line)? }),
            "advance" => Command::Advance,
            "open" | "send" | "move" | "accept" | "settle" | "claim" | "by_hand" => {
                self.escrow(line, key)?
            }
            _ => return self.spread(line),
        })
    }

    fn define(&self, line: &Line) -> Result<Define, String> {
        let name = line.item()?;
        let mut regions = BTreeMap::new();
        for (word, plan) in &line.values {
            let Some(region) = word.strip_prefix("region.") else { continue };
            regions.insert(region.to_string(), World::plan(plan)?);
        }
        let if_revision = self.revision(line, &name)?;
        let definition = World::definition(line)?;
        Ok(Define { name, total: line.number("total")?, regions, definition, if_revision })
    }

    /// Reads `quota/floor` or `quota/floor/buckets`.
    fn plan(text: &str) -> Result<RegionPlan, String> {
        let parts: Vec<u64> = text.split('/').map(number).collect::<Result<_, _>>()?;
        let (quota, floor, buckets) = match parts[..] {
            [quota, floor] => (quota, floor, 1),
            [quota, floor, buckets] => (quota, floor, buckets as u16),
            _ => return Err("a plan is quota/floor or quota/floor/buckets".into()),
        };
        Ok(RegionPlan { quota, floor, buckets })
    }

    fn definition(line: &Line) -> Result<Definition, String> {
        let standard = HoldRules::default();
        let metadata = line.values.iter().filter_map(|(word, value)| {
            Some((word.strip_prefix("meta.")?.to_string(), value.to_string()))
        });
        Ok(Definition {
            rules: HoldRules {
                ttl_ms: line.number_or("ttl", standard.ttl_ms)?,
                ttl_ms_max: line.number_or("ttl_max", standard.ttl_ms_max)?,
                extends_max: line.number_or("extends", u64::from(standard.extends_max))? as u32,
                lifetime_ms_max: line.number_or("lifetime", standard.lifetime_ms_max)?,
            },
            limit_per_buyer: line.number("limit")?,
            opens_at: line.number("opens")?.map(UnixMs),
            closes_at: line.number("closes")?.map(UnixMs),
            metadata: metadata.collect(),
        })
    }

    /// Reads `if_rev=now` or `if_rev=stale`: the item's revision now, or one that it has no more.
    fn revision(&self, line: &Line, name: &ItemName) -> Result<Option<u64>, String> {
        let Some(word) = line.values.get("if_rev") else { return Ok(None) };
        let found = self.shards[self.on].ledger.query(&Query::Item(name.clone()));
        let Found::Item(item) = found else { return Err(format!("if_rev of {name}: {found:?}")) };
        let now = item.revision;
        match *word {
            "now" => Ok(Some(now)),
            "stale" => Ok(Some(now.wrapping_sub(1))),
            other => Err(format!("if_rev is now or stale, not {other}")),
        }
    }

    fn adjust(&self, line: &Line, key: String) -> Result<Adjust, String> {
        let name = line.item()?;
        let change = if let Some(units) = line.number("raise")? {
            Change::Raise(units)
        } else if let Some(units) = line.number("lower")? {
            Change::Lower(units)
        } else if let Some(units) = line.number("raise_in")? {
            Change::RaiseIn { units, region: RegionOrdinal(line.needed("region")? as u16) }
        } else {
            let if_revision = self.revision(line, &name)?.unwrap_or(0);
            Change::Set { total: line.needed("set")?, if_revision }
        };
        Ok(Adjust { name, key, change, reason: line.text("reason").unwrap_or_default() })
    }

    fn escrow(&self, line: &Line, key: String) -> Result<Command, String> {
        let name = line.item()?;
        let (home, known) = self.numbers.get(&name).copied().ok_or("define it first")?;
        let item = ItemNumber(line.number_or("number", known.0)?);
        let this = |word| {
            Ok::<_, String>(BucketRef { home, item, bucket: BucketId(line.needed(word)? as u16) })
        };
        let that = |word| Ok::<_, String>(BucketId(line.needed(word)? as u16));
        Ok(match line.verb {
            "open" => Command::OpenBucket(OpenBucket {
                bucket: this("bucket")?,
                name,
                region: RegionOrdinal(line.number_or("ordinal", 1)? as u16),
                region_name: line.text("region").unwrap_or("eu".to_string()),
                default_region: line.flag("default"),
                place: (0, 1),
                floor: line.number_or("floor", 0)?,
                definition: World::definition(line)?,
                revision: line.number_or("revision", 1)?,
            }),
            "send" | "move" | "claim" | "by_hand" => {
                let keyed = matches!(line.verb, "claim" | "by_hand");
                let send = SendStock {
                    from: this("from")?,
                    to: that("to")?,
                    quantity: line.needed("qty")?,
                    acked: line.number_or("acked", 0)?,
                    if_sent: if keyed { 0 } else { line.needed("if_sent")? },
                    same_region: line.flag("same_region"),
                    bound: line.number_or("bound", 100)?,
                };
                let adjust =
                    |change| Command::Adjust(Adjust { name, key, change, reason: String::new() });
                match line.verb {
                    "move" => Command::MoveStock(send),
                    "claim" => adjust(Change::Claim(send)),
                    "by_hand" => adjust(Change::Move(send)),
                    _ => Command::SendStock(send),
                }
            }
            "accept" => {
                let (sent, floor_sent) = (line.needed("S")?, line.number_or("F", 0)?);
                let (to, from) = (this("to")?, that("from")?);
                Command::AcceptStock(AcceptStock { to, from, sent, floor_sent })
            }
            _ => {
                let (from, to, accepted) = (this("from")?, that("to")?, line.needed("R")?);
                Command::SettleStock(SettleStock { from, to, accepted })
            }
        })
    }
}

fn state(word: &str) -> Result<HoldState, String> {
    let all = [
        HoldState::Held,
        HoldState::Sold,
        HoldState::Released,
        HoldState::Expired,
        HoldState::Returned,
    ];
    all.into_iter().find(|state| state.word() == word).ok_or(format!("no such state: {word}"))
}

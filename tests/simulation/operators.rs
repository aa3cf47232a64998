//! The operators: they change totals, pause items, change regions and move stock, in the middle of
//! everything.

use std::time::Duration;

use holdfast::api::{ItemLayout, RegionStock, Transfers};
use holdfast::runtime;
use rand::RngExt as _;
use rand::seq::IndexedRandom as _;
use serde_json::json;

use super::books::{Adjustment, Pause, moment};
use super::buyers::{Client, Outcome};
use super::call::{Ask, Told};
use super::judge::parsed;
use super::plan::{Kind, NODES, RegionPlan};

fn was_taken(told: &Told) -> bool {
    matches!(told, Told::Answer(answer) if (200..300).contains(&answer.status))
}

fn is_done(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Answer(answer, _) if (200..300).contains(&answer.status))
}

impl Client {
    /// Does what an operator does.
    pub(super) async fn operate(&mut self) {
        match self.rng.random_range(0..14) {
            0..4 => self.adjust().await,
            4 => self.pause().await,
            5..8 => self.change_regions().await,
            8..10 => self.move_stock().await,
            _ => self.change_nodes().await,
        }
    }

    /// Moves a leadership, asks for a checkpoint, drains a node or lets it lead again, makes a
    /// voter a learner or a learner a voter, or has a lost node replaced. The cluster says what it
    /// can do now.
    async fn change_nodes(&mut self) {
        let machine = self.rng.random_range(0..NODES);
        let node = self.world.machines[machine].node_id().0;
        let shard = self.rng.random_range(0..self.world.plan.shards);
        let victim = self.world.plan.victim;
        let is_replacing = self.rng.random_ratio(1, 3);
        if is_replacing && self.world.is_lost(victim) && !self.world.is_coming(victim) {
            return self.replace(victim).await;
        }
        // The victim may be lost for good, and of two voters none may: only it becomes a learner.
        let loses = |kind: &Kind| matches!(kind, Kind::Wipe | Kind::BitFlip);
        let may_demote = machine == victim || !self.world.plan.kinds.iter().any(loses);
        let of_shard = |word: &str| format!("/admin/v1/shards/{shard}/{word}");
        let of_node = |word: &str| format!("/admin/v1/nodes/{node}/{word}");
        let (word, path) = match self.rng.random_range(0..10) {
            0..4 => ("leader", of_shard("leader")),
            4 => ("checkpoint", of_shard("checkpoint")),
            5 => ("drain", of_node("drain")),
            6 => ("undrain", of_node("undrain")),
            7..9 if may_demote => ("demote", of_node("demote?allow_fewer=true")),
            _ => ("promote", of_node("promote")),
        };
        let mut ask = Ask::new("POST", path);
        if word == "leader" {
            ask.body = Some(json!({ "node": node }));
        }
        let at = self.any_node();
        let told = self.world.call(at, ask).await;
        self.world.ordered(word, was_taken(&told));
    }

    /// Lets an empty machine take the place of the node that was lost on it.
    async fn replace(&mut self, lost: usize) {
        let node = self.world.machines[lost].node_id().0;
        let ask = Ask::new("POST", format!("/admin/v1/nodes/{node}/replace"));
        let at = self.any_node();
        let told = self.world.call(at, ask).await;
        self.world.ordered("replace", was_taken(&told));
        let Told::Answer(answer) = told else { return };
        let token = answer.body.get("token").and_then(|token| token.as_str());
        if let Some(token) = token.filter(|_| self.world.is_lost(lost)) {
            self.world.bring_in(lost, token);
        }
    }

    /// Reads the layout of a spread item.
    async fn layout(&mut self) -> Option<(usize, ItemLayout)> {
        let spread: Vec<usize> = self.books.lock().spread.iter().copied().collect();
        let item = *spread.choose(&mut self.rng)?;
        let name = &self.world.plan.items[item].name;
        let ask = Ask::get(format!("/v1/items/{name}/layout"));
        let node = self.any_node();
        let Told::Answer(answer) = self.world.call(node, ask).await else { return None };
        if answer.status != 200 {
            return None;
        }
        match parsed(&answer) {
            Ok(layout) => Some((item, layout)),
            Err(law) => {
                self.world.broken(law);
                None
            }
        }
    }

    /// Moves a quota from one region to another: opens one that is new or closed, closes one, or
    /// only shifts.
    async fn change_regions(&mut self) {
        let Some((item, layout)) = self.layout().await else { return };
        let plans = self.world.plan.items[item].regions.clone();
        if plans.is_empty() {
            return;
        }
        let mut regions = layout.regions.clone();
        let names: Vec<&String> = layout.regions.keys().collect();
        let Some(giver) = names.choose(&mut self.rng).map(|name| (*name).clone()) else { return };
        let taker: &RegionPlan = plans.choose(&mut self.rng).expect("there are regions");
        let gives = regions.get_mut(&giver).expect("it is one of them");
        let is_closing = self.rng.random_ratio(1, 4);
        let units = if is_closing { gives.quota } else { self.rng.random_range(0..=gives.quota) };
        gives.quota -= units;
        gives.floor = gives.floor.min(gives.quota);
        let takes = regions
            .entry(taker.name.clone())
            .or_insert_with(|| RegionStock { buckets: taker.buckets, ..RegionStock::default() });
        takes.quota += units;
        if taker.floor > 0 || self.rng.random_ratio(1, 4) {
            takes.floor = self.rng.random_range(0..=takes.quota);
        }
        let wanted: serde_json::Map<String, serde_json::Value> = regions
            .into_iter()
            .map(|(name, one)| {
                (name, json!({"quota": one.quota, "floor": one.floor, "buckets": one.buckets}))
            })
            .collect();
        let path = format!("/v1/items/{}/layout", layout.item);
        let mut ask = Ask::put(path, json!({ "regions": wanted }));
        ask.if_match = Some(layout.revision);
        // Sent once: the revision that it stands on makes a second copy harmless, and useless.
        let node = self.any_node();
        let told = self.world.call(node, ask).await;
        self.world.ordered("layout", was_taken(&told));
    }

    /// Moves stock by hand.
    async fn move_stock(&mut self) {
        let Some((_, layout)) = self.layout().await else { return };
        let name = &layout.item;
        let node = self.any_node();
        let ask = Ask::get(format!("/v1/items/{name}/transfers"));
        let Told::Answer(answer) = self.world.call(node, ask).await else { return };
        if answer.status != 200 {
            return;
        }
        let known: Transfers = match parsed(&answer) {
            Ok(known) => known,
            Err(law) => return self.world.broken(law),
        };
        let buckets: Vec<u16> = layout.buckets.iter().map(|bucket| bucket.id).collect();
        let mut ends = buckets.sample(&mut self.rng, 2).copied();
        let (Some(from), Some(to)) = (ends.next(), ends.next()) else { return };
        drop(ends);
        let quantity = self.rng.random_range(1..=known.bound.max(1));
        let body = json!({"from": from, "to": to, "quantity": quantity});
        let key = self.fresh_key();
        let ask = Ask::post(format!("/v1/items/{name}/transfers"), &key, body);
        let mut outcome = self.insist(&ask).await;
        // A cluster that was founded without `cluster init` begins at the first schema version.
        if let Outcome::Answer(answer, _) = &outcome
            && answer.body["reason"] == "schema-version"
        {
            let raise = Ask::post("/admin/v1/cluster/upgrade", &self.fresh_key(), json!({}));
            let raised = self.insist(&raise).await;
            self.world.ordered("upgrade", is_done(&raised));
            outcome = self.insist(&ask).await;
        }
        self.world.ordered("transfer", is_done(&outcome));
    }

    async fn adjust(&mut self) {
        let item = self.rng.random_range(0..self.world.plan.items.len());
        let delta =
            if self.rng.random_ratio(1, 2) { 1 } else { -1 } * self.rng.random_range(1..=3_i64);
        let key = self.fresh_key();
        let name = &self.world.plan.items[item].name;
        let body = json!({"delta": delta, "reason": "simulated"});
        let ask = Ask::post(format!("/v1/items/{name}/adjustments"), &key, body);
        let sent = moment();
        let at = {
            let mut books = self.books.lock();
            books.adjustments.push(Adjustment { item, delta, sent, acked: None, refused: None });
            books.adjustments.len() - 1
        };
        let outcome = self.insist(&ask).await;
        self.world.ordered("adjust", is_done(&outcome));
        let mut books = self.books.lock();
        match outcome {
            Outcome::Answer(answer, _) if answer.status == 200 => {
                books.adjustments[at].acked = Some(moment());
            }
            // A refusal of a retry does not speak for an earlier attempt.
            Outcome::Answer(_, true) | Outcome::Unknown => {}
            Outcome::Answer(_, false) | Outcome::NotTaken => {
                books.adjustments[at].refused = Some(moment());
            }
        }
    }

    /// Pauses an item for a while and lets it go on.
    async fn pause(&mut self) {
        let item = self.rng.random_range(0..self.world.plan.items.len());
        if self.books.lock().modes_unsure.insert(item, true).is_some() {
            return;
        }
        let name = self.world.plan.items[item].name.clone();
        let word = |word: &str| Ask::new("POST", format!("/v1/items/{name}/{word}"));
        let (pause, resume) = (word("pause"), word("resume"));
        // Sent once: a copy in some socket could pause the item again later.
        let node = self.any_node();
        let told = self.world.call(node, pause).await;
        self.world.ordered("pause", was_taken(&told));
        let at = match &told {
            Told::Answer(answer) if answer.status == 200 => {
                let mut books = self.books.lock();
                books.pauses.push(Pause { item, from: moment(), until: None });
                Some(books.pauses.len() - 1)
            }
            Told::Answer(_) | Told::Lost | Told::Refused => None,
        };
        let ms = self.rng.random_range(0..500);
        runtime::sleep(Duration::from_millis(ms)).await;
        if let Some(at) = at {
            self.books.lock().pauses[at].until = Some(moment());
        }
        let resumed = self.insist(&resume).await;
        let sure = matches!(&told, Told::Answer(answer) if answer.is_definite())
            || matches!(told, Told::Refused);
        if sure && matches!(resumed, Outcome::Answer(answer, false) if answer.status == 200) {
            self.books.lock().modes_unsure.remove(&item);
        }
    }
}

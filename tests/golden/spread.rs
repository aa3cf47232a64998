//! Lines of the golden scripts about items of several buckets.
//!
//! ```text
//! spread shop/x total=10 region.eu=6/2/2 shards.eu=home,away …    quota/floor/buckets
//! layout shop/x region.eu=… if_rev=now|stale shards.us=away2      all regions from now on
//! image shop/x to=away as=old      what that shard's copy must be now, under a name for later
//! configure shop/x | configure old the copy of this shard, as home wants it now, or that image
//! answered shop/x from=away        home learns what that copy answered last (or revision= held=)
//! erase shop/x                     this shard's copy of the last item of that name
//! lower_begin shop/x key=k lower=3 | set=7 if_rev=now | lower_in=1 region=0
//! lower_commit | lower_abort shop/x key=k
//! delete_begin | delete_abort | delete_commit shop/x
//! levels shop/x | duties           questions
//! ```
//!
//! `number=` names another life of the item.

// A test that asks for one answer means every other one by the rest, known or to come.
#![allow(clippy::wildcard_enum_match_arm)]

use super::*;

impl World {
    pub(super) fn item_ref(&self, line: &Line) -> Result<ItemRef, String> {
        let (home, known) = self.numbers.get(&line.item()?).copied().ok_or("define it first")?;
        Ok(ItemRef { home, item: ItemNumber(line.number_or("number", known.0)?) })
    }

    pub(super) fn spread(&self, line: &Line) -> Result<Command, String> {
        if line.verb == "configure" {
            return Ok(Command::Configure(Box::new(self.named_image(line)?)));
        }
        let name = line.item()?;
        let item = || Ok::<_, String>(self.item_ref(line)?.item);
        let delete = || Ok::<_, String>(Delete { name: name.clone(), item: item()? });
        let key = || line.text("key").ok_or("a key is wanted".to_string());
        let end = || Ok::<_, String>(LowerEnd { name: name.clone(), item: item()?, key: key()? });
        Ok(match line.verb {
            "spread" => {
                let (define, shards) = (self.define(line)?, self.shards_of(line, &name)?);
                Command::DefineSpread(DefineSpread { define, shards })
            }
            "layout" => Command::SetLayout(SetLayout {
                item: item()?,
                if_revision: self.revision(line, &name)?.ok_or("if_rev is wanted")?,
                regions: self.define(line)?.regions,
                shards: self.shards_of(line, &name)?,
                name,
            }),
            "answered" => Command::CopyAnswered(self.answered(line, &name)?),
            "erase" => Command::EraseCopy(EraseCopy { item: self.item_ref(line)? }),
            "lower_begin" => Command::LowerBegin(LowerBegin {
                item: item()?,
                key: key()?,
                change: match line.number("lower_in")? {
                    Some(units) => {
                        let region = RegionOrdinal(line.needed("region")? as u16);
                        Change::LowerIn { units, region }
                    }
                    None => self.adjust(line, key()?)?.change,
                },
                reason: line.text("reason").unwrap_or_default(),
                until: UnixMs(line.number_or("until", 0)?),
                name,
            }),
            "lower_commit" => Command::LowerCommit(end()?),
            "lower_abort" => Command::LowerAbort(end()?),
            "delete_begin" => Command::DeleteBegin(delete()?),
            "delete_abort" => Command::DeleteAbort(delete()?),
            "delete_commit" => Command::DeleteCommit(delete()?),
            other => return Err(format!("no such command: {other}")),
        })
    }

    /// Reads `shards.eu=home,away`.
    fn shards_of(
        &self,
        line: &Line,
        name: &ItemName,
    ) -> Result<BTreeMap<String, Vec<ShardId>>, String> {
        let mut shards = BTreeMap::new();
        for (word, list) in &line.values {
            let Some(region) = word.strip_prefix("shards.") else { continue };
            let list = list.split(',').map(|word| self.shard_called(name, word));
            shards.insert(region.to_string(), list.collect::<Result<_, _>>()?);
        }
        Ok(shards)
    }

    fn image_now(&self, item: ItemRef, shard: ShardId) -> Result<Configure, String> {
        let home = &self.shards[usize::from(item.home.0)].ledger;
        match home.query(&Query::Copy { item, shard }) {
            Found::Copy(image) => Ok(*image),
            other => Err(format!("home has no image for that shard: {other:?}")),
        }
    }

    /// Gives the image of a copy a name.
    pub(super) fn name_image(&mut self, line: &Line) -> Result<Vec<String>, String> {
        let shard = self.shard_called(&line.item()?, line.values.get("to").ok_or("to which?")?)?;
        let image = self.image_now(self.item_ref(line)?, shard)?;
        let said = words::found(&Found::Copy(Box::new(image.clone())), &self.naming());
        self.images.push((line.text("as").ok_or("as= is wanted")?, image));
        Ok(said)
    }

    fn named_image(&self, line: &Line) -> Result<Configure, String> {
        let known = line.place(0)?;
        match self.images.iter().rfind(|(name, _)| name == known) {
            Some((_, image)) => Ok(image.clone()),
            None => self.image_now(self.item_ref(line)?, self.shards[self.on].id),
        }
    }

    fn answered(&self, line: &Line, name: &ItemName) -> Result<CopyAnswered, String> {
        let item = self.item_ref(line)?;
        let shard = self.shard_called(name, line.values.get("from").ok_or("from which?")?)?;
        let mut state = self.copies.get(&(item, shard)).copied().unwrap_or(CopyState::Applied {
            revision: 0,
            mode: Mode::Open,
            held: 0,
            broken: false,
        });
        if let CopyState::Applied { revision, held, .. } = &mut state {
            *revision = line.number_or("revision", *revision)?;
            *held = line.number_or("held", *held)?;
        }
        Ok(CopyAnswered { item, shard, state })
    }

    /// Checks that the floors of an item are where they were granted.
    pub(super) fn check_floors(&self, name: &ItemName) {
        let Some((home, item)) = self.numbers.get(name).copied() else { return };
        let ledger = &self.shards[usize::from(home.0)].ledger;
        let Found::Item(view) = ledger.query(&Query::Item(name.clone())) else { return };
        if view.number != item || view.buckets.len() == 1 {
            return;
        }
        let levels = self.shards.iter().filter_map(|shard| {
            match shard.ledger.query(&Query::Levels(ItemRef { home, item })) {
                Found::Levels(levels) => Some(levels),
                _ => None,
            }
        });
        laws::floors_add_up(&view, &levels.collect::<Vec<_>>());
    }
}

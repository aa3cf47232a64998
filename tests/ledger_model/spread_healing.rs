//! The end of a run: the network heals, and the leaders do their duties.

use super::*;

impl World {
    /// The leaders do their duties until there are none: everything settles, every copy is home's.
    pub(super) fn heal(&mut self) {
        for _ in 0..64 {
            let mut quiet = true;
            for shard in 0..SHARDS {
                let query = Query::Duties { after: None, limit: 100 };
                let Found::Duties(duties) = self.shards[shard].query(&query) else {
                    panic!("duties are answered with duties");
                };
                for duty in duties {
                    quiet &= self.do_duty(duty);
                }
            }
            let unheard = self.net.len().saturating_sub(24);
            for message in self.net.split_off(unheard) {
                if let Message::Settle { .. } | Message::Answer { .. } = &message {
                    self.bring(message);
                }
            }
            if quiet {
                return self.settled();
            }
        }
        panic!("the leaders never come to an end");
    }

    /// Says whether a duty is nothing that must be over at the end.
    fn do_duty(&mut self, duty: Duty) -> bool {
        let life = |item: ItemNumber| item.0 as usize - 1;
        let place = |shard: ShardId, home: u16| {
            usize::from((shard.0 + SHARDS as u16 - home) % SHARDS as u16)
        };
        match duty {
            Duty::Deliver { accept, shard } => {
                let (life, to) = (life(accept.to.item), usize::from(accept.to.bucket.0));
                let there = self.model.lives[life].buckets[to].shard;
                assert_eq!(shard, Some(self.shard(there)), "a donor knows where its receiver is");
                let from = usize::from(accept.from.0);
                let (sent, floor) = (accept.sent, accept.floor_sent);
                self.bring(Message::Accept { life, from, to, sent, floor });
                // A receiver that is erased never answers.
                self.model.lives[life].gone
            }
            Duty::Configure { shard, configure } => {
                let life = life(configure.item.item);
                let means = Box::new(self.model.lives[life].image(life));
                let shard = place(shard, self.home);
                let known = self.model.lives[life].answered[shard];
                self.bring(Message::Image { shard, configure, means });
                known.is_some_and(|known| known.0 == self.model.lives[life].config)
            }
            Duty::Erase { shard, erase } => {
                let shard = place(shard, self.home);
                self.bring(Message::Erase { life: life(erase.item.item), shard });
                false
            }
            Duty::Lower { .. } | Duty::Delete { .. } => true,
        }
    }

    fn settled(&mut self) {
        self.check();
        if self.now().gone {
            return;
        }
        let item = self.item(self.life());
        for shard in 0..SHARDS {
            let Found::Levels(levels) = self.shards[shard].query(&Query::Levels(item)) else {
                panic!("every copy is there");
            };
            assert!(levels.buckets.iter().all(Level::is_settled), "{levels:?}");
            let config = self.now().config;
            assert!(shard == 0 || levels.revision as i64 == config, "a copy is behind: {levels:?}");
        }
    }
}

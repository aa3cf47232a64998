//! Climbing: for each fault the first suite that fails, with a pass of that suite without the fault
//! before it.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use holdfast::planted::Fault;

use crate::Voice;
use crate::report::{Catch, Row};
use crate::rungs::{RUNGS, Rung, Suite};
use crate::suites::{Built, Failed, Ran};

/// A suite under a fault may take so many times as long as without, and a minute.
const SLOWER: u32 = 4;

/// What is known of a suite without a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Clean {
    Passes(Duration),
    Counts(bool),
}

/// The ladder, built.
pub(crate) struct Ladder<'a> {
    voice: &'a Voice,
    out: PathBuf,
    rungs: Vec<Rung>,
    built: Built,
    clean: BTreeMap<&'static str, Clean>,
    broken: Vec<(String, String)>,
    skipped: Vec<(String, String)>,
}

impl<'a> Ladder<'a> {
    /// Builds what the rungs need.
    pub(crate) fn build(
        voice: &'a Voice,
        out: &Path,
        rungs: RangeInclusive<u8>,
    ) -> Result<Ladder<'a>, String> {
        let rungs: Vec<Rung> =
            RUNGS.iter().copied().filter(|rung| rungs.contains(&rung.number)).collect();
        let suites: Vec<Suite> = rungs.iter().flat_map(|rung| rung.suites).copied().collect();
        voice.now("building");
        let built = Built::new(&suites)?;
        let out = out.to_path_buf();
        let (clean, broken, skipped) = (BTreeMap::new(), Vec::new(), Vec::new());
        Ok(Ladder { voice, out, rungs, built, clean, broken, skipped })
    }

    /// Suites that fail without any fault, and what they say.
    pub(crate) fn broken(&self) -> &[(String, String)] {
        &self.broken
    }

    /// Suites that could not judge here.
    pub(crate) fn skipped(&self) -> &[(String, String)] {
        &self.skipped
    }

    /// Climbs until something catches the fault.
    pub(crate) fn climb(&mut self, fault: Fault) -> Result<Row, String> {
        let began = Instant::now();
        for rung in self.rungs.clone() {
            for suite in rung.suites {
                let Some(usual) = self.pass_without(*suite)? else { continue };
                self.voice.now(&format!("{fault}: {}", suite.name));
                let within = usual * SLOWER + Duration::from_secs(60);
                let Ran { failed, .. } = self.built.run(*suite, Some(fault), None, Some(within))?;
                let Some(failed) = failed else { continue };
                let again = self.fails_again(*suite, fault, &failed, within)?;
                self.keep(fault, suite.name, &failed)?;
                let Failed { test, why, after, .. } = failed;
                let (rung, suite) = (rung.number, suite.name.to_owned());
                let catch = Catch { rung, suite, test, why, after, again };
                return Ok(Row { fault, catch: Some(catch), took: began.elapsed() });
            }
        }
        Ok(Row { fault, catch: None, took: began.elapsed() })
    }

    /// Runs a suite without a fault, once: returns how long it takes, `None` when it does not count.
    fn pass_without(&mut self, suite: Suite) -> Result<Option<Duration>, String> {
        let known = match self.clean.get(suite.name) {
            Some(known) => *known,
            None => {
                self.voice.now(&format!("no fault: {}", suite.name));
                let Ran { took, failed, unable } = self.built.run(suite, None, None, None)?;
                let clean = match (failed, unable) {
                    (Some(failed), _) => {
                        let words = format!("{}: {}", failed.test, failed.why);
                        self.broken.push((suite.name.to_owned(), words));
                        Clean::Counts(false)
                    }
                    (None, Some(why)) => {
                        self.skipped.push((suite.name.to_owned(), why));
                        Clean::Counts(false)
                    }
                    (None, None) => Clean::Passes(took),
                };
                self.voice.say(&format!("without a fault: {} {clean:?}", suite.name));
                self.clean.insert(suite.name, clean);
                clean
            }
        };
        Ok(match known {
            Clean::Passes(took) => Some(took),
            Clean::Counts(_) => None,
        })
    }

    /// Runs the test that failed once more; `None` when it is not one test.
    fn fails_again(
        &self,
        suite: Suite,
        fault: Fault,
        failed: &Failed,
        within: Duration,
    ) -> Result<Option<bool>, String> {
        let is_one = suite.build != crate::rungs::Build::Partition && !failed.test.starts_with('(');
        if !is_one {
            return Ok(None);
        }
        let ran = self.built.run(suite, Some(fault), Some(&failed.test), Some(within))?;
        Ok(Some(ran.failed.is_some()))
    }

    fn keep(&self, fault: Fault, suite: &str, failed: &Failed) -> Result<(), String> {
        let path = self.out.join(format!("{fault}-{suite}.log"));
        std::fs::write(&path, &failed.output).map_err(|error| format!("{path:?}: {error}"))
    }
}

//! Where the cluster is: the nodes that were given, and who was last heard to lead what.
//!
//! Promises: a hint is only ever a first guess; when a node does not answer, its hints are
//! forgotten and the next node in turn is asked. Bounded.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::CallError;

/// How many routes (items) are remembered; all are forgotten when one more comes.
const HINTS_MAX: usize = 4_096;

pub(super) struct Addresses {
    nodes: Vec<String>,
    turn: AtomicUsize,
    hints: Mutex<BTreeMap<String, String>>,
    by_id: Mutex<BTreeMap<u64, String>>,
}

impl Addresses {
    pub(super) fn new(nodes: &[String]) -> Result<Addresses, CallError> {
        if nodes.is_empty() {
            return Err(CallError::Invalid("a client needs the URL of at least one node".into()));
        }
        let nodes = nodes.iter().map(|node| base_url(node)).collect::<Result<_, _>>()?;
        Ok(Addresses {
            nodes,
            turn: AtomicUsize::new(0),
            hints: Mutex::default(),
            by_id: Mutex::default(),
        })
    }

    /// Returns the node to ask first: the route's last known leader, else the one whose turn it is.
    pub(super) fn first(&self, route: Option<&str>) -> String {
        let hint = route.and_then(|route| self.hints.lock().get(route).cloned());
        hint.unwrap_or_else(|| {
            self.nodes[self.turn.load(Ordering::Relaxed) % self.nodes.len()].clone()
        })
    }

    /// Forgets what pointed to a node that did not answer, and returns another where there is one.
    pub(super) fn after_failure_of(&self, node: &str) -> String {
        self.hints.lock().retain(|_, hinted| hinted != node);
        let turn = self.turn.load(Ordering::Relaxed);
        let mut next = turn % self.nodes.len();
        if self.nodes[next] == node {
            next = (next + 1) % self.nodes.len();
            self.turn.store(next, Ordering::Relaxed);
        }
        self.nodes[next].clone()
    }

    /// Remembers where each node of the cluster is, so that a hint may be a node id.
    pub(super) fn learn_nodes(&self, nodes: impl IntoIterator<Item = (u64, String)>) {
        let known = nodes.into_iter().filter_map(|(id, at)| Some((id, base_url(&at).ok()?)));
        *self.by_id.lock() = known.collect();
    }

    /// Remembers who leads a route, by address or by node id. An id that is not known is ignored.
    pub(super) fn learn(&self, route: Option<&str>, leader: &str) {
        let Some(route) = route else { return };
        let leader = match leader.parse::<u64>() {
            Ok(id) => self.by_id.lock().get(&id).cloned(),
            Err(_) => base_url(leader).ok(),
        };
        let Some(leader) = leader else { return };
        let mut hints = self.hints.lock();
        if hints.len() >= HINTS_MAX && !hints.contains_key(route) {
            hints.clear();
        }
        hints.insert(route.to_owned(), leader);
    }
}

/// Reads `http://host:port` or `host:port` and returns `http://host:port` without a path.
///
/// # Errors
///
/// [`CallError::Invalid`] when it is neither.
pub(super) fn base_url(text: &str) -> Result<String, CallError> {
    let invalid =
        || CallError::Invalid(format!("{text:?} is not a URL like http://127.0.0.1:7101"));
    let rest = match text.split_once("://") {
        Some(("http", rest)) => rest,
        Some(_) => return Err(invalid()),
        None if text.contains(':') => text,
        None => return Err(invalid()),
    };
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    match authority.parse::<http::uri::Authority>() {
        Ok(parsed) if !parsed.host().is_empty() => Ok(format!("http://{authority}")),
        Ok(_) | Err(_) => Err(invalid()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_does_not_answer_loses_its_hints_and_its_turn() {
        let nodes = ["http://a:1".to_owned(), "b:2".to_owned()];
        let addresses = Addresses::new(&nodes).expect("two nodes");
        addresses.learn(Some("x"), "http://c:3");
        assert_eq!(addresses.first(Some("x")), "http://c:3");
        assert_eq!(addresses.first(Some("y")), "http://a:1");
        assert_eq!(addresses.after_failure_of("http://c:3"), "http://a:1");
        assert_eq!(addresses.first(Some("x")), "http://a:1");
        assert_eq!(addresses.after_failure_of("http://a:1"), "http://b:2");
        assert_eq!(addresses.first(Some("x")), "http://b:2");
    }

    #[test]
    fn a_node_id_is_a_hint_once_its_address_is_known() {
        let addresses = Addresses::new(&["http://a:1".to_owned()]).expect("one node");
        addresses.learn(Some("x"), "2");
        assert_eq!(addresses.first(Some("x")), "http://a:1");
        addresses.learn_nodes([(2, "b:2".to_owned())]);
        addresses.learn(Some("x"), "2");
        assert_eq!(addresses.first(Some("x")), "http://b:2");
    }

    #[test]
    fn what_is_not_an_http_url_is_refused_by_name() {
        for bad in ["", "a", "https://a:1", "ftp://a:1", "http://", "http://a b:1"] {
            let error = base_url(bad).expect_err(bad).to_string();
            assert!(error.contains("is not a URL"), "{bad}: {error}");
        }
        assert_eq!(base_url("http://a:1/v1?x").expect("a URL"), "http://a:1");
    }
}

//! What a person has permitted in a run, summed up at its end.

use std::fmt::Write as _;

use openshell_proxy::approvals::grants::Granted;

/// Returns what was `granted`, each with its line of policy; `None` if nothing was.
pub(crate) fn summary(granted: &[Granted]) -> Option<String> {
    if granted.is_empty() {
        return None;
    }
    let mut summary = "openshell-sandbox: permitted by you:".to_owned();
    for Granted { scope, yaml, count } in granted {
        // Lines are in printable ASCII. Writing to a String cannot fail.
        let _ = write!(summary, "\n  {count} x {scope}: {yaml}");
    }
    Some(summary)
}

#[cfg(test)]
mod tests {
    use openshell_proxy::approvals::grants::Granted;

    use super::summary;

    #[test]
    fn the_summary_names_each_line_and_how_often_it_was_permitted() {
        assert_eq!(summary(&[]), None);
        let granted = |count| Granted {
            scope: "once",
            yaml: "ask_a.test_443: {}".to_owned(),
            count,
        };
        assert_eq!(
            summary(&[granted(2)]).unwrap(),
            "openshell-sandbox: permitted by you:\n  2 x once: ask_a.test_443: {}"
        );
    }
}

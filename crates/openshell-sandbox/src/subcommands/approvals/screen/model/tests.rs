use std::time::{Duration, Instant};

use openshell_access::control::wire::{Answer, Answered, Grant, Listing, Question, QuestionLine};

use super::{Action, Key, SEEN, Screen, View};

fn question(id: &str, is_dangerous: bool) -> Question {
    let line = |yaml: &str| QuestionLine {
        yaml: yaml.to_owned(),
        permits: Vec::new(),
        is_dangerous,
    };
    Question {
        id: id.to_owned(),
        state: "held".to_owned(),
        held: 1,
        seconds_left: 100,
        facts: "{}".to_owned(),
        text: "host       a.test".to_owned(),
        lines: vec![line("narrow"), line("wide")],
    }
}

fn listing(questions: &[Question]) -> Listing {
    Listing {
        questions: questions.to_vec(),
        ..Listing::default()
    }
}

/// A screen on which the end of the open question was seen long ago.
fn opened(questions: &[Question], index: usize) -> (Screen, Instant) {
    let now = Instant::now();
    let mut screen = Screen::new(None);
    screen.list("web".to_owned(), listing(questions), now);
    for _ in 0..=index {
        assert!(screen.press(Key::Down, true, now).is_none());
    }
    screen.press(Key::Enter, true, now);
    see(&mut screen, now);
    (screen, now + Duration::from_secs(1))
}

/// Notes that the end of the open question is on the screen.
fn see(screen: &mut Screen, now: Instant) {
    let View::Question(opened) = &mut screen.view else {
        panic!("{:?}", screen.view);
    };
    opened.end_seen.get_or_insert(now);
}

fn given(action: Option<Action>) -> Option<(String, String, usize)> {
    match action? {
        Action::Give(
            _,
            Answer::Decide {
                id, decision, line, ..
            },
        ) => Some((id, decision, line)),
        other => panic!("{other:?}"),
    }
}

fn once(id: &str) -> Option<(String, String, usize)> {
    Some((id.to_owned(), "once".to_owned(), 0))
}

#[test]
fn one_key_permits_the_open_question_once_and_then_nothing_is_selected() {
    let (mut screen, now) = opened(&[question("q-1", false), question("q-2", false)], 1);
    assert_eq!(given(screen.press(Key::Char('a'), true, now)), once("q-2"));
    assert!(matches!(screen.view, View::List(None)));
    for _ in 0..10 {
        assert!(
            screen.press(Key::Char('a'), true, now).is_none(),
            "held down"
        );
        assert!(screen.press(Key::Enter, true, now).is_none());
    }
}

#[test]
fn what_lasts_or_is_dangerous_takes_a_second_and_different_key() {
    for (key, is_dangerous, decision) in [('r', false, "run"), ('a', true, "once")] {
        let (mut screen, now) = opened(&[question("q-1", is_dangerous)], 0);
        for _ in 0..3 {
            assert!(screen.press(Key::Char(key), true, now).is_none());
        }
        let (_, given, _) = given(screen.press(Key::Char('y'), true, now)).unwrap();
        assert_eq!(given, decision);
        let (mut screen, now) = opened(&[question("q-1", is_dangerous)], 0);
        screen.press(Key::Char(key), true, now);
        screen.press(Key::Down, true, now);
        assert!(
            screen.press(Key::Char('y'), true, now).is_none(),
            "another key between"
        );
    }
    let (mut screen, now) = opened(&[question("q-1", true)], 0);
    assert!(screen.press(Key::Char('y'), true, now).is_none());
}

#[test]
fn nothing_is_permitted_before_its_end_was_seen_for_half_a_second() {
    let now = Instant::now();
    let mut screen = Screen::new(None);
    screen.list("web".to_owned(), listing(&[question("q-1", false)]), now);
    screen.press(Key::Down, true, now);
    screen.press(Key::Enter, true, now);
    let later = now + Duration::from_secs(9);
    assert!(
        screen.press(Key::Char('a'), true, later).is_none(),
        "not seen"
    );
    see(&mut screen, later);
    let soon = later + Duration::from_millis(499);
    assert!(
        screen.press(Key::Char('a'), true, soon).is_none(),
        "too soon"
    );
    let then = later + Duration::from_millis(500);
    assert_eq!(given(screen.press(Key::Char('a'), true, then)), once("q-1"));
}

#[test]
fn pasted_text_permits_nothing() {
    for key in ['a', 'r', 'y'] {
        let (mut screen, now) = opened(&[question("q-1", false)], 0);
        assert!(screen.press(Key::Char(key), false, now).is_none());
        assert!(screen.press(Key::Char('y'), false, now).is_none());
    }
}

#[test]
fn a_denial_needs_one_key_and_no_reading() {
    for (key, decision) in [('d', "deny"), ('x', "deny_run")] {
        let now = Instant::now();
        let mut screen = Screen::new(None);
        screen.list("web".to_owned(), listing(&[question("q-1", true)]), now);
        screen.press(Key::Down, true, now);
        screen.press(Key::Enter, true, now);
        let (_, given, _) = given(screen.press(Key::Char(key), true, now)).unwrap();
        assert_eq!(given, decision);
    }
}

#[test]
fn a_wider_line_is_read_anew() {
    let (mut screen, now) = opened(&[question("q-1", false)], 0);
    screen.press(Key::Char('w'), true, now);
    assert!(
        screen.press(Key::Char('a'), true, now).is_none(),
        "not seen"
    );
    see(&mut screen, now);
    let now = now + Duration::from_secs(1);
    screen.press(Key::Char('w'), true, now);
    let (_, _, line) = given(screen.press(Key::Char('a'), true, now)).unwrap();
    assert_eq!(line, 1, "there is no wider one");
}

#[test]
fn a_question_that_goes_while_it_is_open_stays_and_permits_nothing() {
    let (mut screen, now) = opened(&[question("q-1", false), question("q-2", true)], 0);
    screen.list("web".to_owned(), listing(&[question("q-2", true)]), now);
    let View::Question(opened) = &screen.view else {
        panic!("{:?}", screen.view);
    };
    assert_eq!(opened.at.id, "q-1");
    for key in ['a', 'r', 'y', 'd', 'x'] {
        assert!(screen.press(Key::Char(key), true, now).is_none());
    }
    screen.press(Key::Back, true, now);
    assert_eq!(screen.rows.len(), 1);
}

#[test]
fn the_selection_stays_at_its_question_whatever_comes_and_goes() {
    let now = Instant::now();
    let mut screen = Screen::new(None);
    let all = [question("q-1", false), question("q-2", false)];
    screen.list("web".to_owned(), listing(&all), now);
    screen.press(Key::Down, true, now);
    screen.press(Key::Down, true, now);
    // The first one goes, and a dangerous one comes in its place.
    let others = [question("q-0", true), question("q-2", false)];
    screen.list("web".to_owned(), listing(&others), now);
    let ids: Vec<_> = screen
        .rows
        .iter()
        .map(|row| row.question.id.as_str())
        .collect();
    assert_eq!(ids, ["q-1", "q-2", "q-0"]);
    assert!(screen.rows[0].is_gone);
    let View::List(Some(at)) = &screen.view else {
        panic!("{:?}", screen.view);
    };
    assert_eq!(at.id, "q-2");
    screen.press(Key::Back, true, now);
    let ids: Vec<_> = screen
        .rows
        .iter()
        .map(|row| row.question.id.as_str())
        .collect();
    assert_eq!(ids, ["q-2", "q-0"]);
}

#[test]
fn a_grant_is_taken_back_by_its_id() {
    let now = Instant::now();
    let mut screen = Screen::new(None);
    let grant = |id: &str| Grant {
        id: id.to_owned(),
        yaml: "ask".to_owned(),
        permits: Vec::new(),
        kept_in: None,
    };
    let listing = Listing {
        grants: vec![grant("g1"), grant("g2")],
        muted: vec!["/bin/a".to_owned()],
        ..Listing::default()
    };
    screen.list("web".to_owned(), listing, now);
    screen.press(Key::Char('g'), true, now);
    screen.press(Key::Down, true, now);
    let Some(Action::Give(_, Answer::Revoke(id))) = screen.press(Key::Char('u'), true, now) else {
        panic!("{:?}", screen.view);
    };
    assert_eq!(id, "g2");
    screen.answered(&Answer::Revoke(id), Answered::Gone);
    assert!(screen.message.contains("gone"));
    screen.press(Key::Down, true, now);
    let Some(Action::Give(_, Answer::Unmute(program))) = screen.press(Key::Char('u'), true, now)
    else {
        panic!("{:?}", screen.view);
    };
    assert_eq!(program, "/bin/a");
}

#[test]
fn a_line_is_saved_after_its_difference_was_on_the_screen() {
    let begin = Instant::now();
    let mut screen = Screen::new(None);
    screen.list("web".to_owned(), listing(&[question("q-1", false)]), begin);
    screen.press(Key::Down, true, begin);
    screen.press(Key::Enter, true, begin);
    let see = |screen: &mut Screen, at: Instant| {
        let View::Question(opened) = &mut screen.view else {
            panic!("{:?}", screen.view);
        };
        opened.end_seen.get_or_insert(at);
        at + SEEN
    };
    let ask = |screen: &mut Screen, now: Instant| {
        let Some(Action::Give(_, preview)) = screen.press(Key::Char('s'), true, now) else {
            panic!("{:?}", screen.view);
        };
        assert!(matches!(preview, Answer::Preview { .. }), "{preview:?}");
        preview
    };
    let difference = || Answered::Done("policy.yaml, line 7:\n+  ask".to_owned());
    let now = see(&mut screen, begin);
    let preview = ask(&mut screen, now);
    // A key that comes before the difference makes that one too late.
    assert!(screen.press(Key::Char('r'), true, now).is_none());
    screen.answered(&preview, difference());
    let View::Question(opened) = &screen.view else {
        panic!("{:?}", screen.view);
    };
    assert_eq!(opened.asked, Some("run"));
    let preview = ask(&mut screen, now);
    screen.answered(&preview, difference());
    assert!(
        screen.press(Key::Char('y'), true, now).is_none(),
        "not read yet"
    );
    assert!(screen.message.contains("to its end"));
    let now = see(&mut screen, now);
    // Moving takes nothing back, another key does.
    screen.press(Key::Down, true, now);
    screen.press(Key::Char('n'), true, now);
    assert!(screen.press(Key::Char('y'), true, now).is_none());
    let preview = ask(&mut screen, now);
    screen.answered(&preview, difference());
    let now = see(&mut screen, now);
    screen.press(Key::Down, true, now);
    let Some(Action::Give(_, Answer::Decide { decision, .. })) =
        screen.press(Key::Char('y'), true, now)
    else {
        panic!("{:?}", screen.view);
    };
    assert_eq!(decision, "save");
}

#[test]
fn a_proposal_is_denied_with_words_that_may_hold_any_key_and_is_never_permitted_once() {
    let proposal = Question {
        facts: r#"{"kind": "proposal"}"#.to_owned(),
        ..question("q-1", false)
    };
    let (mut screen, now) = opened(&[proposal], 0);
    assert!(screen.press(Key::Char('a'), true, now).is_none());
    assert!(
        screen.message.contains("takes r, s, d or x"),
        "{}",
        screen.message
    );
    assert!(screen.press(Key::Char('d'), true, now).is_none());
    for c in "quay".chars() {
        assert!(screen.press(Key::Char(c), true, now).is_none());
    }
    screen.press(Key::Erase, true, now);
    screen.press(Key::Back, true, now);
    assert!(matches!(screen.view, View::Question(_)), "not denied");
    screen.press(Key::Char('x'), true, now);
    screen.press(Key::Char('n'), true, now);
    screen.press(Key::Char('o'), true, now);
    match screen.press(Key::Enter, true, now) {
        Some(Action::Give(
            _,
            Answer::Decide {
                decision, reason, ..
            },
        )) => {
            assert_eq!((decision.as_str(), reason.as_str()), ("deny_run", "no"));
        }
        other => panic!("{other:?}"),
    }
}

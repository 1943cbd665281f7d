//! The question that a page asks before a change that many clients notice, or that cannot be undone.

use crate::http::pages::Form;

/// The field of a form that confirms its change.
const CONFIRMED: &str = "confirmed";

/// A question on a page. Its form sends the same change again, with the confirmation.
pub(super) struct Confirmation {
    pub(super) title: String,
    pub(super) text: String,
    /// The text of the button that makes the change.
    pub(super) button: &'static str,
    /// The address of the form.
    pub(super) action: String,
    /// The address of the page without the question.
    pub(super) cancel: String,
    /// The fields of the form that was sent.
    pub(super) fields: Vec<(String, String)>,
}

/// Whether a form confirms its change.
pub(super) fn is_confirmed(form: &Form) -> bool {
    !form.get(CONFIRMED).is_empty()
}

impl Confirmation {
    /// `(action, cancel)`: the address of the form, and that of the page without the question.
    pub(super) fn new(
        form: &Form,
        (action, cancel): (&str, &str),
        title: String,
        text: &str,
        button: &'static str,
    ) -> Confirmation {
        let kept = form.fields().filter(|(name, _)| !["csrf", CONFIRMED].contains(name));
        Confirmation {
            title,
            text: text.to_owned(),
            button,
            action: action.to_owned(),
            cancel: cancel.to_owned(),
            fields: kept.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        }
    }
}

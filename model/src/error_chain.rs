/// An error and its causes on one line. A cause that the text already contains is left out.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let message = cause.to_string();
        if !text.contains(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Layer {
        text: &'static str,
        source: Option<Box<Layer>>,
    }

    fn layers(texts: &[&'static str]) -> Layer {
        let source = (texts.len() > 1).then(|| Box::new(layers(&texts[1..])));
        Layer { text: texts[0], source }
    }

    #[test]
    fn causes_follow_once() {
        assert_eq!(error_chain(&layers(&["no answer"])), "no answer");
        assert_eq!(error_chain(&layers(&["no answer", "lost", "reset"])), "no answer: lost: reset");
        assert_eq!(error_chain(&layers(&["no answer: lost", "lost", "reset"])), "no answer: lost: reset");
    }
}

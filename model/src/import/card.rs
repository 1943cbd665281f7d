//! Model cards that refer to a manifest: an artifact with the manifest as its subject and one layer of Markdown. The
//! manifest keeps its digest, so every kind of manifest can have a card.

use crate::digest::Digest;
use crate::manifest::{Descriptor, Manifest};
use crate::media_type;
use crate::modelfile::DerivedModel;
use crate::oci::new_manifest::{NewManifest, SmallBlob};

/// The file name of a card, in any case.
pub const CARD_NAME: &str = "README.md";

/// Makes the card of a manifest. `created` is its time as in RFC 3339, so that a text that returns is a new card.
pub fn attached_card(subject: &Descriptor, text: &str, created: &str) -> DerivedModel {
    let config = SmallBlob::new(media_type::OCI_EMPTY, b"{}".to_vec());
    let mut card = SmallBlob::new(media_type::MARKDOWN, text.as_bytes().to_vec());
    card.descriptor.annotations.insert(media_type::TITLE_ANNOTATION.to_owned(), CARD_NAME.to_owned());
    let layers = [card.descriptor.clone()];
    let mut manifest = NewManifest::new(media_type::OCI_MANIFEST, &config.descriptor, &layers);
    manifest.artifact_type = Some(media_type::LODE_CARD);
    manifest.subject = Some(subject);
    manifest.annotations.insert(media_type::CREATED_ANNOTATION.to_owned(), created.into());
    let manifest = manifest.to_bytes();
    DerivedModel {
        blobs: vec![config, card],
        media_type: media_type::OCI_MANIFEST.to_owned(),
        digest: Digest::sha256(&manifest),
        manifest,
    }
}

/// The text of an attached card: its first layer of Markdown, or else its first layer with the name of a card.
pub fn card_layer(manifest: &Manifest) -> Option<&Descriptor> {
    let has_name = |layer: &&Descriptor| {
        let title = layer.annotations.get(media_type::TITLE_ANNOTATION);
        title.is_some_and(|title| title.eq_ignore_ascii_case(CARD_NAME))
    };
    let is_markdown = |layer: &&Descriptor| media_type::essence(&layer.media_type) == media_type::MARKDOWN;
    manifest.layers.iter().find(is_markdown).or_else(|| manifest.layers.iter().find(has_name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_refers_to_its_manifest() {
        let subject = Descriptor::new(media_type::DOCKER_MANIFEST, Digest::sha256(b"m"), 1);
        let card = attached_card(&subject, "# Mini", "2026-11-28T00:00:00Z");
        let manifest = Manifest::parse(Some(&card.media_type), &card.manifest).unwrap();
        assert_eq!(manifest.referrer_type(), Some(media_type::LODE_CARD));
        assert_eq!(manifest.subject, Some(subject.clone()));
        let layer = card_layer(&manifest).unwrap();
        assert_eq!((&layer.digest, layer.size), (&Digest::sha256(b"# Mini"), 6));
        assert_eq!(card.digest, Digest::sha256(&card.manifest));
        // Later, the same text is another card.
        assert_ne!(attached_card(&subject, "# Mini", "2026-11-28T00:00:01Z").digest, card.digest);
    }

    #[test]
    fn the_layer_of_markdown_comes_before_one_with_the_name() {
        let layer = |media_type: &str, title: &str| {
            let mut layer = Descriptor::new(media_type, Digest::sha256(title.as_bytes()), 1);
            layer.annotations.insert(media_type::TITLE_ANNOTATION.to_owned(), title.to_owned());
            layer
        };
        let named = layer(media_type::OCTET_STREAM, "readme.md");
        let (other, markdown) =
            (layer(media_type::OCTET_STREAM, "a.bin"), layer("text/markdown; charset=utf-8", "b.md"));
        for (layers, expected) in [
            (vec![other.clone(), named.clone(), markdown.clone()], Some(&markdown)),
            (vec![other.clone(), named.clone()], Some(&named)),
            (vec![other.clone()], None),
            (vec![], None),
        ] {
            let config = SmallBlob::new(media_type::OCI_EMPTY, b"{}".to_vec());
            let bytes = NewManifest::new(media_type::OCI_MANIFEST, &config.descriptor, &layers).to_bytes();
            let manifest = Manifest::parse(Some(media_type::OCI_MANIFEST), &bytes).unwrap();
            assert_eq!(card_layer(&manifest), expected);
        }
    }
}

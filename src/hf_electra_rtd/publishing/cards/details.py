"""What a card says that no record knows."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass


# huggingface/hub-docs, docs/hub/repositories-licenses.md, without `unknown`.
# fmt: off
_LICENSES = frozenset((
    "apache-2.0", "mit", "openrail", "bigscience-openrail-m", "creativeml-openrail-m", "bigscience-bloom-rail-1.0",
    "bigcode-openrail-m", "afl-3.0", "artistic-2.0", "bsl-1.0", "bsd", "bsd-2-clause", "bsd-3-clause",
    "bsd-3-clause-clear", "c-uda", "cc", "cc0-1.0", "cc-by-2.0", "cc-by-2.5", "cc-by-3.0", "cc-by-4.0",
    "cc-by-sa-3.0", "cc-by-sa-4.0", "cc-by-nc-2.0", "cc-by-nc-3.0", "cc-by-nc-4.0", "cc-by-nd-4.0",
    "cc-by-nc-nd-3.0", "cc-by-nc-nd-4.0", "cc-by-nc-sa-2.0", "cc-by-nc-sa-3.0", "cc-by-nc-sa-4.0",
    "cdla-sharing-1.0", "cdla-permissive-1.0", "cdla-permissive-2.0", "wtfpl", "ecl-2.0", "epl-1.0", "epl-2.0",
    "etalab-2.0", "eupl-1.1", "agpl-3.0", "gfdl", "gpl", "gpl-2.0", "gpl-3.0", "lgpl", "lgpl-2.1", "lgpl-3.0",
    "isc", "lppl-1.3c", "ms-pl", "mpl-2.0", "odc-by", "odbl", "openrail++", "osl-3.0", "postgresql", "ofl-1.1",
    "ncsa", "unlicense", "zlib", "pddl", "lgpl-lr", "deepfloyd-if-license", "llama2", "gemma", "other",
))
# fmt: on
_HUB_ID = re.compile(r"(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*")
_LANGUAGE = re.compile(r"[a-z]{2,3}|multilingual|code")


@dataclass(frozen=True)
class Details:
    """What people must say of a model, because no record knows it.

    Attributes:
        license: of the weights, as the Hub calls it, such as `apache-2.0`.
        languages: ISO 639-1 codes, such as `en` (or 639-3, where a language has no shorter one).
        datasets: Hub ids of the corpora, where they are there.
        authors: for the citation, such as `Ada Lovelace and Charles Babbage`.
        license_name, license_link: where the licence is `other`: its name and where it stands.

    Raises:
        ValueError: for a licence, language or dataset that the Hub would not know as one, or no language.
    """

    license: str
    languages: tuple[str, ...]
    datasets: tuple[str, ...] = ()
    authors: str = ""
    license_name: str = ""
    license_link: str = ""

    def __post_init__(self) -> None:
        if self.license not in _LICENSES:
            close = difflib.get_close_matches(self.license.lower().replace(" ", "-"), _LICENSES, n=3, cutoff=0.5)
            hint = f" Perhaps {' or '.join(close)}?" if close else ""
            raise ValueError(
                f"{self.license!r} is no licence of the Hub.{hint} For one that it has no name for, say 'other' and "
                "give license_name and license_link. (huggingface.co/docs/hub/repositories-licenses lists them.)"
            )
        named = (bool(self.license_name), bool(self.license_link))
        if named != (self.license == "other",) * 2:
            raise ValueError("The licence 'other' needs license_name and license_link; any other has neither.")
        for name, pattern, what in (
            ("languages", _LANGUAGE, "language code such as 'en'"),
            ("datasets", _HUB_ID, "id of a dataset on the Hub, such as 'wikimedia/wikipedia'"),
        ):
            values = getattr(self, name)
            if isinstance(values, str):
                raise ValueError(f"{name} must be several, such as ({values!r},), not one string.")
            for value in values:
                if not pattern.fullmatch(value):
                    raise ValueError(f"{name}: {value!r} is no {what}.")
        if not self.languages:
            raise ValueError("languages: a card says which language the text is in, such as 'en'.")

"""Places where a name stands, or seems to: each with what must be found, word for word."""

# ruff: noqa: RUF001 - the letters of other scripts are meant

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ingestion_pipeline.websites.naming import Names


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An answer, a business, and the words in the answer that name it."""

    about: str
    answer: str
    names: Names
    found: tuple[str, ...]
    language: str | None = None
    others: tuple[Names, ...] = ()


def case(
    about: str, name: str | Names, answer: str, *found: str, language: str | None = None, others: Sequence[str] = ()
) -> Case:
    names = Names.of(name) if isinstance(name, str) else name
    return Case(
        about=about,
        answer=answer,
        names=names,
        found=found,
        language=language,
        others=tuple(Names.of(other) for other in others),
    )


ACME = Names.of("Acme GmbH", url="https://www.acme.com/")
TARGET = Names.of("Target", url="https://www.target.com")
APPLE = Names.of("Apple Inc.", url="https://apple.com")
MUELLER = Names.of("Müller", url="https://mueller.de")
MONDAY = Names.of("monday.com", url="https://monday.com")
NORTH = Names.of("Northwind Traders", aliases=["NWT"], url="https://northwind-traders.example")

PLAIN = (
    case("as it is", ACME, "I would pick Acme for that.", "Acme"),
    case("with its legal form", ACME, "Acme GmbH was founded in 1990.", "Acme GmbH"),
    case("twice", ACME, "Acme is fine. So is ACME.", "Acme", "ACME"),
    case("nowhere", ACME, "There are several good tools for that."),
    case("in an empty answer", ACME, ""),
    case("at the very end", ACME, "The best is Acme", "Acme"),
    case("in quotes", ACME, "the so-called “Acme” suite", "Acme"),
    case("in bold", ACME, "1. **Acme**: good for small shops", "Acme"),
    case("in italics by underscores", ACME, "try _Acme_ first", "Acme"),
    case("as a link", ACME, "[Acme](https://acme.com/pricing)", "Acme", "acme.com"),
    case("with a sign of a trade mark", ACME, "Acme® and Acme™ tools", "Acme", "Acme"),
    case("with a footnote", ACME, "Acme¹ and Acme[2]", "Acme", "Acme"),
    case("as a hash tag and a handle", ACME, "#Acme or @acme", "Acme", "acme"),
    case("an alias", NORTH, "NWT ships on Mondays.", "NWT"),
    case("a short alias in small letters", NORTH, "the nwt group"),
    case("both words of two", NORTH, "Northwind Traders ships.", "Northwind Traders"),
    case("one word of two", NORTH, "The northwind blows."),
)
POSSESSIVES = (
    case("a possessive", ACME, "Acme's prices are fair.", "Acme"),
    case("a typographic possessive", ACME, "Acme’s prices are fair.", "Acme"),
    case("a possessive of a name in s", "Atlassus", "Atlassus' tools", "Atlassus"),
    case("a name with a possessive", "Wendy's", "Wendy’s burgers", "Wendy’s"),
    case("a name with a possessive, left out", "Wendy's", "Wendys is fine", "Wendys"),
    case("an English plural", ACME, "He owns three Acmes."),
    case("a German genitive", ACME, "Acmes Preise sind fair.", "Acmes", language="de"),
    case("a Swedish genitive", "Volvo", "Volvos bilar är säkra.", "Volvos", language="sv"),
    case("a Turkish suffix", "Trendyol", "Trendyol'da indirim var", "Trendyol", language="tr"),
    case("a French elision", "Acadomia", "les cours d'Acadomia", "Acadomia", language="fr"),
    case("an elision that is the name", "L'Oréal", "choose L’Oreal", "L’Oreal"),
)
CASING = (
    case("in small letters", ACME, "people like acme a lot", "acme"),
    case("in capitals", ACME, "ACME WINS", "ACME"),
    case("with humps", "GitHub", "host it on Github or github", "Github", "github"),
    case("with humps, apart", "YouTube", "watch You Tube videos", "You Tube"),
    case("humps of plain words", "HubSpot", "HubSpot wins, hubspot too", "HubSpot", "hubspot"),
    case("two plain words that make one with humps", "YouTube", "can you tube it?"),
    case("a short name as a word", "SAP", "the sap of the tree"),
    case("a short name", "SAP", "SAP or another ERP", "SAP"),
    case("a short mixed name", "Bol", "koop bij Bol of BOL", "Bol", "BOL"),
    case("a short mixed name in small letters", "Bol", "een bol wol"),
    case("a Turkish dotless i", "Işık", "ISIK ve Işık", "ISIK", "Işık"),
    case("full width", "Sony", "ＳＯＮＹは日本の会社", "ＳＯＮＹ"),
)
HYPHENS = (
    case("a hyphen left out", "Coca-Cola", "Coca Cola or CocaCola", "Coca Cola", "CocaCola"),
    case("another hyphen", "Coca-Cola", "Coca‑Cola", "Coca‑Cola"),
    case("a hyphen put in", "Northwind Traders", "Northwind-Traders", "Northwind-Traders"),
    case("a compound", ACME, "an Acme-style tool, Acme-powered", "Acme", "Acme"),
    case("across a line", "Northwind Traders", "by Northwind\nTraders", "Northwind\nTraders"),
    case("across a sentence", "Facebook Marketplace", "on Facebook. Marketplace fees"),
    case("across two paragraphs", "Northwind Traders", "Northwind\n\nTraders"),
    case("a soft hyphen inside", ACME, "Ac\u00adme", "Ac\u00adme"),
    case("a no-break space", "Northwind Traders", "Northwind\u00a0Traders", "Northwind\u00a0Traders"),
    case("an ampersand as a word", "Marks & Spencer", "Marks and Spencer", "Marks and Spencer"),
    case("an ampersand without blanks", "Marks & Spencer", "Marks&Spencer", "Marks&Spencer"),
    case("an ampersand in German", "Müller & Sohn", "Müller und Sohn", "Müller und Sohn"),
    case("letters and an ampersand", "H&M", "H & M and H&M", "H & M", "H&M"),
    case("letters with a dot", "E.ON", "E.ON und EON", "E.ON", "EON"),
    case("letters apart", "E.ON", "type e on the keyboard"),
    case("a sign at the end", "Disney+", "Disney+ or Disney Plus", "Disney", "Disney"),
    case("the name without that sign", "Disney+", "Disney owns it."),
    case("an exclamation mark", "Yahoo!", "Yahoo is a portal", "Yahoo"),
    case("a digit inside", "3M", "3M makes tape", "3M"),
)
SUBSTRINGS = (
    case("inside a word", ACME, "pacmeat and placement"),
    case("at the beginning of a word", ACME, "acmeism was a movement"),
    case("at the end of a word", ACME, "the subacme level"),
    case("before a digit", "Office", "Office365 is another"),
    case("in an identifier", ACME, "set acme_token = 1"),
    case("in another's host", ACME, "see acme-reviews.com and acme.org"),
    case("in its own host", ACME, "see www.acme.com.", "www.acme.com"),
    case("in its own address for mail", ACME, "sales@acme.com", "sales@acme.com"),
    case("in another's address for mail", ACME, "acme@gmail.com"),
    case("in a sentence without a blank", ACME, "I use Acme.The rest is worse", "Acme"),
    case("inside a longer name", "Delta Air", "Delta Airport Hotel"),
    case("inside a competitor's name", ACME, "Acme Brothers", others=["Acme Brothers"]),
    case("beside a competitor", ACME, "Acme Brothers or Acme", "Acme", others=["Acme Brothers"]),
    case("a name that is a host", "Booking.com", "on Booking.com", "Booking.com"),
    case("a language that looks like it", "Java", "written in JavaScript"),
)
WORDS = (
    case("a plain word", TARGET, "Define your target first."),
    case("a name in the sentence", TARGET, "You can buy it at Target today.", "Target"),
    case("a verb that begins a sentence", TARGET, "Target your customers. Then sell."),
    case("a name that begins a sentence", TARGET, "Target is a retailer.", "Target"),
    case("a possessive that begins a sentence", TARGET, "Target's stores close.", "Target"),
    case("a heading", TARGET, "How To Target New Customers\nIt is easy."),
    case("a group that is no name", TARGET, "Our Target audience is young."),
    case("an entry of a list", TARGET, "1. Target\n2. Walmart", "Target"),
    case("a bold entry of a list", TARGET, "- **Target**: many stores", "Target"),
    case("its own host", TARGET, "go to target.com", "target.com"),
    case("one that is sure vouches", TARGET, "Target leads. I buy at Target.", "Target", "Target"),
    case("first of some names", TARGET, "Target, Walmart and Costco sell it.", "Target"),
    case("two names compared", TARGET, "Target vs Walmart", "Target"),
    case("all that is said", TARGET, "Target.", "Target"),
    case("after a colon", TARGET, "The best shop: Target.", "Target"),
    case("a verb after a colon", TARGET, "The next step: Target your buyers."),
    case("a heading of its own", TARGET, "### 1. Target\nMany stores.", "Target"),
    case("an entry with a colon", TARGET, "Shops:\n* **Target:** many stores", "Target"),
    case("before a dash", TARGET, "Target — many stores", "Target"),
    case("in a table", TARGET, "| Shop | Price |\n| Target | low |", "Target"),
    case("a question", TARGET, "Have you tried Target?", "Target"),
    case("fruit", APPLE, "An apple a day; apples are fine."),
    case("a pie", APPLE, "We had Apple pie."),
    case("a business", APPLE, "Phones by Apple cost more.", "Apple"),
    case("all in capitals", TARGET, "TARGET YOUR AUDIENCE NOW"),
    case("a weekday", MONDAY, "We meet on monday and use monday.com.", "monday.com"),
    case("two plain words", "Next Level", "take it to the next level"),
    case("two plain words as a name", "Next Level", "we hired Next Level for it", "Next Level"),
    case("a German noun", "Stern", "Der Stern am Himmel", language="de"),
    case("a German noun as a name", "Stern", "**Stern** ist bekannt", "Stern", language="de"),
)
LETTERS = (
    case("an umlaut spelt out", MUELLER, "Mueller liefert", "Mueller"),
    case("an umlaut left out", MUELLER, "Muller delivers", "Muller"),
    case("an umlaut", MUELLER, "bei Müller gibt es das", "Müller"),
    case("an umlaut in two characters", MUELLER, "bei Mu\u0308ller", "Mu\u0308ller"),
    case("an accent left out", "Nescafé", "Nescafe is instant", "Nescafe"),
    case("a ligature", "Firefly Office", "Fireﬂy Oﬃce", "Fireﬂy Oﬃce"),
    case("a ligature of French", "Œuvre", "Oeuvre is a shop", "Oeuvre"),
    case("a Danish letter", "Ørsted", "Orsted builds wind farms", "Orsted"),
    case("a Polish letter", "Żabka", "w Żabce lub Zabka", "Żabce", "Zabka", language="pl"),
    case("a sharp s", "Weißenhaus", "Weissenhaus am Meer", "Weissenhaus"),
)
ENDINGS = (
    case("Russian, instrumental", "Яндекс", "пользуюсь Яндексом", "Яндексом"),
    case("Russian, genitive", "Сбербанк", "услуги Сбербанка", "Сбербанка"),
    case("Russian, feminine", "Корзинка", "в Корзинке и Корзинку", "Корзинке", "Корзинку"),
    case("Russian, an adjective", "Газпром", "газпромовский офис"),
    case("Russian yo", "Алёнка", "шоколад Аленка", "Аленка"),
    case("Polish, locative", "Orlen", "na stacji w Orlenie", "Orlenie", language="pl"),
    case("Polish, feminine", "Biedronka", "zakupy w Biedronce", "Biedronce", language="pl"),
    case("Finnish, inessive", "Nokia", "työskentelen Nokialla", "Nokialla", language="fi"),
    case("Finnish genitive in English", "Nokia", "Nokian tyres are good", language="en"),
    case("a colon of Finnish", "IKEA", "IKEA:n huonekalut", "IKEA", language="fi"),
    case("Czech", "Škoda", "jezdím Škodou", "Škodou", language="cs"),
    case("Hungarian", "Telekom", "a Telekomnak", "Telekomnak", language="hu"),
)
EAST = (
    case("Latin in Japanese", ACME, "弊社はAcmeを使います", "Acme"),
    case("katakana before a particle", "メルカリ", "メルカリで売る", "メルカリ"),
    case("katakana in a longer word", "アマゾン", "アマゾネスの話"),
    case("katakana with a legal form", "株式会社メルカリ", "メルカリは便利", "メルカリ"),
    case("kanji", "日立製作所", "日本の日立製作所は大きい", "日立製作所"),
    case("Chinese in a sentence", "阿里巴巴", "我在阿里巴巴购物", "阿里巴巴"),
    case("voiced kana", "かくた", "がくたの店"),
    case("Korean with a particle", "카카오", "카카오는 좋은 회사입니다", "카카오"),
    case("Korean in a longer word", "삼성", "삼성동에 삽니다"),
    case("Thai", "ช้อปปี้", "ซื้อที่ช้อปปี้วันนี้", "ช้อปปี้"),
    case("Arabic with a joined word", "أمازون", "اشتريت وأمازون", "أمازون"),
    case("Hebrew with a joined word", "וויקס", "האתר בוויקס", "וויקס"),
)
SLIPS = (
    case("a letter too few", "Cloudflare", "Cloudfare is quick", "Cloudfare"),
    case("a letter too many", "Zalando", "Zallando ships", "Zallando"),
    case("two letters swapped", "Evernote", "Evernoet is old", "Evernoet"),
    case("a slip of two words", "Contoso Analytics", "Contosso Analytics", "Contosso Analytics"),
    case("a slip in small letters", "Cloudflare", "the cloudfare thing"),
    case("not if it stands elsewhere", "Zalando", "Zalando, not Zallando", "Zalando"),
    case("another business of like name", "Shopify", "Spotify plays music"),
    case("a plural is no slip", "Evernote", "Evernotes are notes"),
    case("a plain word is never guessed", "Stripe", "Stripes and dots"),
    case("a short name is never guessed", "Asana", "Asanas are poses"),
    case("somebody else", "Wikipedia", "Wikimedia hosts it", others=["Wikimedia"]),
    case("another number", "Studio54", "Studio55 opened"),
)
CASES = (*PLAIN, *POSSESSIVES, *CASING, *HYPHENS, *SUBSTRINGS, *WORDS, *LETTERS, *ENDINGS, *EAST, *SLIPS)

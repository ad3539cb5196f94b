"""Words that are names of businesses and words of a language, too.

Not a dictionary: a word that is missing here is taken for a name wherever it stands, so the list
holds the plain words that businesses like to be called by, in the languages of the templates.
"""

from __future__ import annotations

from ingestion_pipeline.websites.naming.folding import folded_name

_ENGLISH = """
about above access account active adapt address advance agile air alpha amazon amber anchor answer
apple arc arch arrow art aspect asset atlas atom aura avenue axis balance bamboo bank base basic
basket bay beacon beam bear bee bell bench best beta better beyond bit black blank blaze blend block
bloom blue board boat bold bolt bond book boost border box brain branch brand brave bread breeze
brick bridge bright brook brush bubble buffer bug build bumble bunch butter button cable cactus
calm camp canvas canyon capital carbon card care cargo case cash cast castle catalyst cedar cell
center central chain change chapter charm charge chase check chef chip choice circle citizen city
class clay clear clever click climb clock close cloud club coach coast coda code coffee coil coin
collective column comet common compass complete concept condor connect constant contact copper copy
coral core corner cosmos cotton course cover craft crane crate cream create credit crest crew cross
crown crystal cube current curve cycle dash data dawn day deal deep deer delta depot desk dialog
diamond digital direct discover dish dock domain door dot double dove draft dragon draw dream drift
drive drop dune dynamic eagle earth east easy echo edge element elite ember empire energy engine
envoy epic equal essential ether evergreen every evolve exact express eye fabric face factor fair
falcon family farm fast feather fidelity field file filter find fire first fish fit flag flame flash
flat fleet flex flight float floor flow flower fluent fly focus fold forest forge form forward found
foundation fountain fox frame free fresh friend front frontier fuel full fun fuse fusion future
galaxy gap garden gate gather gem general genius gift giant glass glean globe glow go goal gold
good grace grain grand granite graph grass gravity great green grid grip ground group grove grow
guide guru harbor harvest haven hawk head health heart heat hero hive hobby hold home honey hope
horizon house hub human hunter ice icon idea ideal image impact index indigo infinity ink inside
insight instant iron island ivy jade jet join joy juice jump jungle just keen keep key kind king
kite kit lab lake lamp land lane lark laser latch launch laurel lead leaf league lean learn ledger
legacy lemon level lever light like lily lime line linear link lion list live local lock loft logic
loop lotus loud loyal lucky luna lunar magic magnet mail main make mango maple march mark market
master match matter maven meadow measure medal medium mega mercury merit mesh meta meteor metro mint
mirror mission mist mobile mode modern moment momentum monday moon more morning motion motive motor
mountain move must mustang native nature navy near nest net network new next nimble noble node noon
north nova note notion now number oak oasis ocean octave olive omega omni one only open optimum
oracle orange orbit orchard orchid order origin other outlook outside owl own oxygen pace pacific
pack page paint palm panda paper paradise parallel parcel park part partner passage patch path
patriot pattern pause peak pear pearl pebble pen people pepper perfect phoenix photon pier pilot
pine pink pioneer pivot pixel place plain plan planet plant plate play plot plug plum plus pocket
point polar pond pool port post pouch power practice prefer premier present press prime primer print
prism private pro process profile progress promise proof prosper proper puma pulse pure purple push
quantum quest quick quiet quill quilt quiver quote radar radiant radius rain ramp ranch range rapid
raven ray reach ready real rebel record red reef reflect relay reliant relish remote renew rent
resolve rest retro rise river road robin rock rocket root rose round route royal ruby rush saga sage
sail salt sand sapphire savvy scale scout script sea search season second secure seed sense sentry
sequoia serve set seven shadow shape share sharp shell shield shift shine ship shop shore signal
silver simple sirius site six skill sky slack slate sleek slice smart smile smooth snap snow social
soft solar solid solution sonar sonic soul sound source south space spark spectrum speed sphere
spice spin spiral spirit splash spot spring sprint sprout square stack staff stage standard staples
star start state station steam steel stellar step stone storm story strategy stream street strike
string stripe strong studio style subway success sugar summit sun super sure surface surge swan
swift switch symbol sync table tag tail talent tandem tango tap target task taste team tempo tender
tent terra test thread thrive thunder tide tiger tile time titan toast together tone tool top torch
total touch tower town trace track trade trail train transform travel tree trek trend tribe trident
triumph true trust tune turn twist unison unite unity universal up urban valley value vantage vault
vector velocity venture verge vertex vessel via vibe victory view village vine vision vista vital
vivid voice void volt voyage wander warp water wave way wealth web well west whale wheel white whole
wild will willow wind window wing winter wire wisdom wise wish wolf wonder wood word work world wrap
yard yellow yes young zen zero zest zone zoom
"""
_OTHERS = """
blume burg falke feuer fleck freund garten haus heimat himmel kraft leben licht liebe merkur mond
netz quelle sonne stern tag traum vorwerk wald welt werk zeit zukunft
aube avenir bonheur carrefour ciel eau eclair etoile feu fleur free lumiere maison monde orange or
pomme printemps soleil
ahora amigo aqui barco casa cielo corazon estrella flor fuego luna luz mango mar mundo norte sol
alba amico casa cielo fiore fuoco luce luna mare mela mondo sole stella terra vento
amigo azul casa estrela flor lua mundo natura sol vida vivo
boom bloem bol blauw groen huis zon ster
dom dym gwiazda kropka lato mleko morze orzel plus slonce wisla zabka
билайн дом звезда лента магнит мир мегафон очаг перекресток пятерочка свет связь солнце точка яблоко
"""

COMMON_WORDS = frozenset(folded_name(word) for word in (_ENGLISH + _OTHERS).split())

# What may follow a name at the beginning of a sentence, and seldom follows a plain word there.
_VERBS = """
    is was has had offers offered provides sells makes made says said helps lets allows claims
    announced launched introduced remains operates also does doesn isn can inc ltd llc gmbh ag corp
    ist hat bietet war macht verkauft est a propose offre vend es tiene ofrece vende fue
    è ha offre é tem oferece vende is heeft biedt to ma oferuje это предлагает имеет
"""
AFTER_A_NAME = frozenset(_VERBS.split())
# Nouns that name the kind of thing right after it: `the Target app`.
_CUES = (
    "app apps store stores website site platform software tool brand company retailer service suite"
    " account subscription plan team ceo cfo founder inc ltd llc gmbh ag corp"
)
KIND_AFTER_A_NAME = frozenset(_CUES.split())
# Languages that write every noun with a capital: there it proves nothing.
CAPITAL_NOUNS = frozenset({"de", "lb"})
# With these after it a capital is another name's, or a plain word's: Amazon rainforest.
_OF_OTHERS = """
    audience audiences basin cider county effect forest fruit group groups juice juices jungle
    market markets pie pies rainforest river sauce script scripts tree trees zeit
"""
NOT_A_NAME_BEFORE = frozenset(_OF_OTHERS.split())

-- The table of pgbucket.Bucket and its functions, as pgbucket.Migrate makes them. This may be
-- run again at any time.

-- One row for each key. No index has a column that changes, and half of each page is left
-- free: so an update stays on its page and touches no index (a HOT update).
CREATE TABLE IF NOT EXISTS leaky_buckets (
	key bytea PRIMARY KEY,

	-- The state: the instant at which the level reaches 0, in microseconds since 1970 and
	-- parts of one more; when that was written, or 0 if there is no state; and the rate in
	-- force: its version, the time of a cost unit in microseconds and parts of one more, how
	-- many parts a microsecond has, and the burst.
	empty      bigint NOT NULL DEFAULT 0,
	empty_part bigint NOT NULL DEFAULT 0,
	written    bigint NOT NULL DEFAULT 0,
	version    bigint NOT NULL DEFAULT 0,
	unit       bigint NOT NULL DEFAULT 0,
	unit_part  bigint NOT NULL DEFAULT 0,
	parts      bigint NOT NULL DEFAULT 0,
	burst      bigint NOT NULL DEFAULT 0,

	-- The answer to whoever asked last, as RETURNING shows nothing but the new row: what the
	-- clock read, whether the level was raised, whether there was no state, and what empty
	-- was before the level was raised.
	asked       bigint  NOT NULL DEFAULT 0,
	ok          boolean NOT NULL DEFAULT false,
	cold        boolean NOT NULL DEFAULT false,
	before      bigint  NOT NULL DEFAULT 0,
	before_part bigint  NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- Until when a hold lets no request leave, in microseconds since 1970; 0 if there is none. Tables of
-- version 1 had no such column. ALTER TABLE locks the table even if it then has nothing to do, and behind a transaction
-- that only reads it, as a dump, all Takes would wait for that lock. So it is looked first.
DO $hold$
BEGIN
	IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'leaky_buckets'::regclass AND attname = 'hold' AND NOT attisdropped) THEN
		ALTER TABLE leaky_buckets ADD COLUMN hold bigint NOT NULL DEFAULT 0;
	END IF;
END $hold$;

-- The atomic step of a Take, as shaper.Take.Apply has it: from a row to the row that takes
-- its place. It reads the clock itself, so b must be locked. An instant is an array of its
-- microseconds and its parts, as arrays are compared like instants. Version 1 had other
-- parameters.
DROP FUNCTION IF EXISTS leaky_buckets_step(leaky_buckets, bigint, bigint, bigint, bigint, bigint,
	bigint, bigint, bigint, bigint, bigint, bigint, bigint, bigint, bigint);
CREATE OR REPLACE FUNCTION leaky_buckets_step(
	b leaky_buckets,
	rise bigint, rise_part bigint, room bigint, room_part bigint, ahead bigint,
	new_version bigint, new_unit bigint, new_unit_part bigint, new_parts bigint, new_burst bigint,
	high bigint, high_part bigint, seen bigint, told bigint, guard bigint
) RETURNS leaky_buckets LANGUAGE plpgsql AS $step$
DECLARE
	clock   CONSTANT bigint := extract(epoch FROM clock_timestamp()) * 1000000;
	most    CONSTANT bigint := 9007199254740992; -- 2^53: no instant is later, and no version greater
	longest CONSTANT bigint := 2251799813685248; -- 2^51: no span is longer
	now     CONSTANT bigint[] := ARRAY[clock, 0];
	level   bigint[]; -- when the level reaches 0
	ends    bigint := 0; -- when the hold ends, if one is in force
	changed boolean;

	-- For a change of the rate: the instant from which spans count, and these in the parts of both
	-- rates, of which there are fraction in a microsecond.
	start    bigint;
	fraction numeric;
	old_time numeric;
	new_time numeric;
	span     numeric;
	next     numeric;
	empty_in numeric; -- whole microseconds
BEGIN
	b.asked := clock;
	b.ok := false;
	b.cold := (b.written BETWEEN 1 AND most
		AND b.empty BETWEEN 0 AND most AND b.empty_part >= 0 AND b.empty_part < b.parts
		AND b.hold BETWEEN 0 AND most AND b.version BETWEEN 0 AND most AND b.burst >= 1 AND b.parts BETWEEN 1 AND 1000000000000
		AND b.unit BETWEEN 0 AND longest AND b.unit_part >= 0 AND b.unit_part < b.parts AND (b.unit > 0 OR b.unit_part > 0)
	) IS NOT TRUE;
	changed := b.cold OR b.written > clock;

	IF b.cold THEN
		level := ARRAY[clock + guard, 0];
		b.version := new_version;
		b.unit := new_unit;
		b.unit_part := new_unit_part;
		b.parts := new_parts;
		b.burst := new_burst;
		b.hold := 0;
	ELSE
		level := ARRAY[b.empty - greatest(0, b.written - clock), b.empty_part];
		IF b.hold > 0 THEN
			ends := b.hold - greatest(0, b.written - clock);
			IF ends <= clock THEN
				ends := 0;
			END IF;
		END IF;
		IF (b.unit, b.unit_part, b.parts, b.burst) = (new_unit, new_unit_part, new_parts, new_burst) THEN
			IF b.version < new_version THEN
				b.version := new_version;
				changed := true;
			END IF;
		ELSIF b.version < new_version THEN
			-- shaper.BucketRate.Rescale, rounded up to whole microseconds.
			changed := true;
			start := greatest(clock, ends);
			fraction := b.parts::numeric * new_parts;
			old_time := (b.unit::numeric * b.parts + b.unit_part) * new_parts;
			new_time := (new_unit::numeric * new_parts + new_unit_part) * b.parts;
			span := (level[1] - start) * fraction + level[2] * new_parts::numeric;
			level := ARRAY[start, 0];
			IF span > 0 THEN
				next := least(span - least((b.burst - 1) * old_time, longest * fraction), 2000000 * fraction);
				empty_in := div(span * new_time + fraction * old_time - 1, fraction * old_time);
				IF next > 0 THEN
					empty_in := greatest(empty_in,
						div(next * old_time + (span - next) * new_time + fraction * old_time - 1, fraction * old_time),
						div(next + least((new_burst - 1) * new_time, longest * fraction) + fraction - 1, fraction));
				END IF;
				level := ARRAY[start + least(empty_in, longest)::bigint, 0];
			END IF;
			b.version := new_version;
			b.unit := new_unit;
			b.unit_part := new_unit_part;
			b.parts := new_parts;
			b.burst := new_burst;
		ELSE
			level := greatest(level, now);
			b.before := level[1];
			b.before_part := level[2];
			RETURN b;
		END IF;
	END IF;

	IF clock >= seen THEN
		level := greatest(level, ARRAY[high, high_part]);
	END IF;
	IF b.hold > 0 OR told > clock THEN
		IF told > clock AND told > ends AND clock >= seen THEN
			ends := told;
			changed := true;
		END IF;
		IF ends > 0 THEN
			-- The time of a unit less than the burst, as shaper.BucketRate.Times has it.
			fraction := (new_burst - 1) * (new_unit::numeric * new_parts + new_unit_part);
			level := greatest(level, CASE WHEN fraction >= longest::numeric * new_parts THEN ARRAY[ends + longest, 0]
				ELSE ARRAY[ends + div(fraction, new_parts)::bigint, mod(fraction, new_parts)::bigint] END);
		END IF;
		b.hold := ends;
	END IF;
	level := greatest(level, now);
	b.before := level[1];
	b.before_part := level[2];
	b.ok := level <= ARRAY[clock + ahead + room, room_part];
	IF b.ok THEN
		level := ARRAY[level[1] + rise + (level[2] + rise_part) / new_parts, (level[2] + rise_part) % new_parts];
	ELSIF NOT changed THEN
		RETURN b;
	END IF;
	b.empty := level[1];
	b.empty_part := level[2];
	b.written := clock;
	RETURN b;
END $step$;

-- Take, as the one row that is the answer. DO UPDATE locks the row before it evaluates the
-- step, so that this sees the row as it is then, and reads the clock then. A key that has no
-- row gets an empty one first, which nobody else sees, so that the same is true for it.
--
-- If async is true, the end of the transaction does not wait for the disk.
CREATE OR REPLACE FUNCTION leaky_buckets_ask(
	bucket_key bytea,
	rise bigint, rise_part bigint, room bigint, room_part bigint, ahead bigint,
	new_version bigint, new_unit bigint, new_unit_part bigint, new_parts bigint, new_burst bigint,
	high bigint, high_part bigint, seen bigint, told bigint, guard bigint, async boolean
) RETURNS leaky_buckets LANGUAGE plpgsql AS $take$
DECLARE
	answer leaky_buckets;
BEGIN
	IF async THEN
		PERFORM set_config('synchronous_commit', 'off', true);
	END IF;
	LOOP
		INSERT INTO leaky_buckets AS b (key) VALUES (bucket_key)
		ON CONFLICT (key) DO UPDATE SET (
			empty, empty_part, written, version, unit, unit_part, parts, burst, hold, asked, ok, cold, before, before_part
		) = (
			SELECT s.empty, s.empty_part, s.written, s.version, s.unit, s.unit_part, s.parts, s.burst, s.hold, s.asked, s.ok, s.cold, s.before, s.before_part
			FROM leaky_buckets_step(b, rise, rise_part, room, room_part, ahead,
				new_version, new_unit, new_unit_part, new_parts, new_burst, high, high_part, seen, told, guard) AS s
		)
		RETURNING b.* INTO answer;
		EXIT WHEN answer.asked > 0;
	END LOOP;
	RETURN answer;
END $take$;

-- The Take of version 1, for processes of that version: they neither tell a hold nor learn of one, but
-- the level lets none of their requests leave before its end. (A call that is under way while the
-- column is added fails, as the row that it returns is another then.)
CREATE OR REPLACE FUNCTION leaky_buckets_take(
	bucket_key bytea,
	rise bigint, rise_part bigint, room bigint, room_part bigint, ahead bigint,
	new_version bigint, new_unit bigint, new_unit_part bigint, new_parts bigint, new_burst bigint,
	high bigint, high_part bigint, seen bigint, guard bigint, async boolean
) RETURNS leaky_buckets LANGUAGE sql AS $take$
	SELECT * FROM leaky_buckets_ask(bucket_key, rise, rise_part, room, room_part, ahead,
		new_version, new_unit, new_unit_part, new_parts, new_burst, high, high_part, seen, 0, guard, async)
$take$;

-- The seats of a key, as shared.SeatState has them: from when on they are given, and the processes in the order of their
-- IDs. A crash or a fail-over empties the table, as it is UNLOGGED. Then seats are given only after a guard, which is
-- what a loss costs; in a row that came back from some time before, seats would be free that are in use.
CREATE UNLOGGED TABLE IF NOT EXISTS leaky_buckets_seat (
	key     bytea    PRIMARY KEY,
	written bigint   NOT NULL DEFAULT 0, -- in microseconds since 1970; 0: there is no state
	ready   bigint   NOT NULL DEFAULT 0,
	ids     bytea[]  NOT NULL DEFAULT '{}',
	held    int[]    NOT NULL DEFAULT '{}',
	want    int[]    NOT NULL DEFAULT '{}',
	since   bigint[] NOT NULL DEFAULT '{}',
	expires bigint[] NOT NULL DEFAULT '{}',
	number  bigint[] NOT NULL DEFAULT '{}'
) WITH (fillfactor = 50);

-- The atomic step of Seats, as shared.Seating.Apply has it. It reads the clock when the row is locked, unless it is told
-- one, as only tests do.
CREATE OR REPLACE FUNCTION leaky_buckets_sit(
	bucket_key bytea, own_id bytea, cap bigint, own_held bigint, own_want bigint, question bigint, answered bigint,
	lease bigint, fresh bigint, guard bigint, told bigint,
	OUT granted bigint, OUT target bigint, OUT clock bigint
) LANGUAGE plpgsql AS $sit$
DECLARE
	most     CONSTANT bigint := 9007199254740992; -- 2^53
	day      CONSTANT bigint := 86400000000;
	b        leaky_buckets_seat;
	is_state boolean;
	me       int;         -- which of the processes asks
	latest   bigint := 0; -- its latest question
	waited   bigint := 0; -- since when it has waited
	free     bigint;
	wants    bigint[];    -- of all, as far as they count
	waits    boolean;     -- another one waits
	starving boolean;     -- and has no seat
	rest     bigint;
	want     bigint;
BEGIN
	LOOP
		SELECT * INTO b FROM leaky_buckets_seat AS s WHERE s.key = bucket_key FOR UPDATE;
		EXIT WHEN FOUND;
		INSERT INTO leaky_buckets_seat (key) VALUES (bucket_key) ON CONFLICT (key) DO NOTHING;
	END LOOP;
	clock := told;
	IF clock = 0 THEN
		clock := extract(epoch FROM clock_timestamp()) * 1000000;
	END IF;

	is_state := b.written > 0 AND b.written >= clock - day AND b.ready BETWEEN 1 AND most
		AND ARRAY[cardinality(b.held), cardinality(b.want), cardinality(b.since), cardinality(b.expires), cardinality(b.number)]
			= array_fill(cardinality(b.ids), ARRAY[5]);
	IF is_state THEN
		-- Those stay whose leases last, and no time is later than if it were written now.
		SELECT coalesce(bool_and((octet_length(h.id) > 0 AND (h.n = 1 OR h.id > b.ids[h.n - 1])
				AND h.held >= 0 AND h.want >= 0 AND h.since BETWEEN 0 AND most AND h.expires BETWEEN 1 AND most
				AND h.number BETWEEN 0 AND most) IS TRUE), true),
			array_agg(h.id) FILTER (WHERE h.lives), array_agg(h.held) FILTER (WHERE h.lives), array_agg(h.want) FILTER (WHERE h.lives),
			array_agg(least(h.since, clock)) FILTER (WHERE h.lives), array_agg(least(h.expires, clock + lease)) FILTER (WHERE h.lives),
			array_agg(h.number) FILTER (WHERE h.lives),
			cap - own_held - coalesce(sum(h.held) FILTER (WHERE h.other), 0),
			own_want || array_agg(CASE WHEN h.asks THEN h.want ELSE least(h.want, h.held) END::bigint) FILTER (WHERE h.other),
			coalesce(bool_or(h.other AND h.asks AND h.want > h.held), false),
			coalesce(bool_or(h.other AND h.asks AND h.want > h.held AND h.held = 0), false)
			INTO is_state, b.ids, b.held, b.want, b.since, b.expires, b.number, free, wants, waits, starving
		FROM (
			SELECT u.*, u.expires > clock AS lives, u.expires > clock AND u.id <> own_id AS other, clock + lease - u.expires <= fresh AS asks
			FROM unnest(b.ids, b.held, b.want, b.since, b.expires, b.number) WITH ORDINALITY AS u(id, held, want, since, expires, number, n)
		) AS h;
	END IF;
	IF is_state THEN
		b.ready := least(b.ready, clock + guard);
	ELSE
		b := ROW(bucket_key, 0, clock + guard, NULL, NULL, NULL, NULL, NULL, NULL);
		free := cap - own_held;
		waits := false;
	END IF;

	me := array_position(b.ids, own_id);
	IF me IS NOT NULL THEN
		latest := b.number[me];
		waited := b.since[me];
		IF latest > question THEN
			granted := b.held[me];
			target := cap;
			RETURN;
		END IF;
	END IF;
	IF answered > latest AND clock >= b.ready THEN
		b.ready := clock + guard;
	END IF;
	IF own_want <= own_held THEN
		waited := 0;
	ELSIF waited = 0 THEN
		waited := clock;
	END IF;

	granted := own_held;
	IF own_want > own_held AND free > 0 AND clock >= b.ready THEN
		IF waits THEN
			-- All who wait come up to one level, and what is left goes to those who have waited longest. Between the numbers
			-- that they hold and want, each further level costs as much as the one before.
			WITH w AS MATERIALIZED (
				SELECT own_id AS id, own_held AS held, own_want AS want, waited AS since
				UNION ALL
				SELECT u.id, u.held, u.want, u.since FROM unnest(b.ids, b.held, b.want, b.since, b.expires) AS u(id, held, want, since, expires)
				WHERE u.id <> own_id AND u.want > u.held AND clock + lease - u.expires <= fresh
			), levels AS (
				SELECT n.level, sum(greatest(least(w.want, n.level) - w.held, 0))::bigint AS cost, greatest(1, count(*) FILTER (WHERE w.held <= n.level AND w.want > n.level)) AS rise
				FROM (SELECT w.held AS level FROM w UNION SELECT w.want FROM w) AS n, w GROUP BY n.level
			), reached AS (
				SELECT l.level + (free - l.cost) / l.rise AS level, (free - l.cost) % l.rise AS rest
				FROM levels AS l WHERE l.cost <= free ORDER BY l.level DESC LIMIT 1
			)
			SELECT CASE WHEN own_held > r.level OR own_want <= r.level THEN greatest(own_held, least(own_want, r.level))
				WHEN r.rest > (SELECT count(*) FROM w WHERE w.held <= r.level AND w.want > r.level AND (w.since, w.id) < (waited, own_id)) THEN r.level + 1
				ELSE r.level END
				INTO granted FROM reached AS r;
		ELSE
			granted := least(own_want, own_held + free);
		END IF;
		IF granted = own_want THEN
			waited := 0;
		ELSIF granted > own_held THEN
			waited := clock;
		END IF;
	END IF;

	target := cap;
	IF waits THEN
		SELECT array_agg(u.want ORDER BY u.want) INTO wants FROM unnest(wants) AS u(want);
		rest := cap;
		FOR n IN REVERSE cardinality(wants)..1 LOOP
			want := wants[cardinality(wants) - n + 1];
			IF want * n >= rest THEN
				target := rest / n;
				IF rest % n > 0 AND NOT starving THEN
					target := target + 1;
				END IF;
				EXIT;
			END IF;
			rest := rest - want;
		END LOOP;
		target := least(own_want, target);
	END IF;

	IF me IS NOT NULL AND granted = 0 AND own_want = 0 THEN
		b.ids := b.ids[:me - 1] || b.ids[me + 1:];
		b.held := b.held[:me - 1] || b.held[me + 1:];
		b.want := b.want[:me - 1] || b.want[me + 1:];
		b.since := b.since[:me - 1] || b.since[me + 1:];
		b.expires := b.expires[:me - 1] || b.expires[me + 1:];
		b.number := b.number[:me - 1] || b.number[me + 1:];
	ELSIF granted > 0 OR own_want > 0 THEN
		IF me IS NULL THEN -- It gets a place among the others.
			SELECT count(*) + 1 INTO me FROM unnest(b.ids) AS u(id) WHERE u.id < own_id;
			b.ids := b.ids[:me - 1] || own_id || b.ids[me:];
			b.held := b.held[:me - 1] || 0 || b.held[me:];
			b.want := b.want[:me - 1] || 0 || b.want[me:];
			b.since := b.since[:me - 1] || 0::bigint || b.since[me:];
			b.expires := b.expires[:me - 1] || 0::bigint || b.expires[me:];
			b.number := b.number[:me - 1] || 0::bigint || b.number[me:];
		END IF;
		b.held[me] := granted;
		b.want[me] := own_want;
		b.since[me] := waited;
		b.expires[me] := clock + lease;
		b.number[me] := question;
	END IF;
	UPDATE leaky_buckets_seat AS s SET (written, ready, ids, held, want, since, expires, number)
		= (clock, b.ready, coalesce(b.ids, '{}'), coalesce(b.held, '{}'), coalesce(b.want, '{}'), coalesce(b.since, '{}'), coalesce(b.expires, '{}'), coalesce(b.number, '{}'))
		WHERE s.key = bucket_key;
END $sit$;

-- The keeper of a key, as shared.KeepState has it: the process or '' if the key is free, for how long it asked in
-- microseconds, when its lease ends, and what was written last.
CREATE TABLE IF NOT EXISTS leaky_buckets_kept (
	key     bytea  PRIMARY KEY,
	written bigint NOT NULL DEFAULT 0, -- in microseconds since 1970; 0: there is no state
	id      bytea  NOT NULL DEFAULT '',
	lease   bigint NOT NULL DEFAULT 0,
	ends    bigint NOT NULL DEFAULT 0,
	value   bytea
) WITH (fillfactor = 50);

-- The atomic step of Keep, as shared.Keeping.Apply has it. It reads the clock when the row is locked, unless it is told one, as
-- only tests do. The end of the transaction waits for the disk: if a lease were lost in a crash, two processes would
-- keep the key. The value is NULL if it is the one that was told.
CREATE OR REPLACE FUNCTION leaky_buckets_keep(
	bucket_key bytea, own_id bytea, own_lease bigint, own_value bytea, told bigint,
	OUT keeper bytea, OUT own boolean, OUT last_value bytea, OUT clock bigint
) LANGUAGE plpgsql AS $keep$
DECLARE
	most CONSTANT bigint := 9007199254740992; -- 2^53
	day  CONSTANT bigint := 86400000000;
	b    leaky_buckets_kept;
	back boolean; -- the clock has gone back
BEGIN
	LOOP
		SELECT * INTO b FROM leaky_buckets_kept AS k WHERE k.key = bucket_key FOR UPDATE;
		EXIT WHEN FOUND;
		INSERT INTO leaky_buckets_kept (key) VALUES (bucket_key) ON CONFLICT (key) DO NOTHING;
	END LOOP;
	clock := told;
	IF clock = 0 THEN
		clock := extract(epoch FROM clock_timestamp()) * 1000000;
	END IF;
	IF (b.written > 0 AND b.written >= clock - day AND CASE WHEN b.id = '' THEN b.lease = 0 AND b.ends = 0
		ELSE b.lease BETWEEN 1 AND 60000000 AND b.lease % 1000 = 0 AND b.ends BETWEEN 1 AND most END) IS NOT TRUE THEN
		b := ROW(bucket_key, 0, '', 0, 0, NULL);
	END IF;
	back := b.ends > clock + b.lease;
	IF back THEN
		b.ends := clock + b.lease;
	END IF;
	IF b.ends <= clock THEN
		b.id := '';
	END IF;

	own := b.id = own_id;
	IF own THEN
		b.value := own_value;
	ELSIF b.id <> '' OR own_lease = 0 THEN
		keeper := b.id;
		last_value := b.value;
		IF back THEN
			UPDATE leaky_buckets_kept AS k SET ends = b.ends, written = clock WHERE k.key = bucket_key;
		END IF;
		RETURN;
	ELSE
		last_value := b.value;
	END IF;
	keeper := CASE WHEN own_lease > 0 THEN own_id ELSE '' END;
	UPDATE leaky_buckets_kept AS k SET written = clock, id = keeper, lease = own_lease,
		ends = CASE WHEN own_lease > 0 THEN clock + own_lease ELSE 0 END, value = b.value
		WHERE k.key = bucket_key;
END $keep$;

-- Migrate replaces functions whose version is lower than this one, or missing, and no others.
-- A change of a function comes with the next number.
COMMENT ON FUNCTION leaky_buckets_take IS 'pgbucket v3';

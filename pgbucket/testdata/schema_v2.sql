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
-- version 1 had no such column.
ALTER TABLE leaky_buckets ADD COLUMN IF NOT EXISTS hold bigint NOT NULL DEFAULT 0;

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
	ELSE
		level := ARRAY[b.empty - greatest(0, b.written - clock), b.empty_part];
		IF b.hold > 0 THEN
			ends := b.hold - greatest(0, b.written - clock);
			IF ends <= clock THEN
				ends := 0;
			END IF;
		END IF;
		IF (b.unit, b.unit_part, b.parts, b.burst) = (new_unit, new_unit_part, new_parts, new_burst) THEN
			changed := changed OR b.version < new_version;
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
		ELSE
			level := greatest(level, now);
			b.before := level[1];
			b.before_part := level[2];
			RETURN b;
		END IF;
	END IF;

	IF clock >= seen THEN
		level := greatest(level, ARRAY[high, high_part]);
		IF told > clock AND told > ends THEN
			ends := told;
			changed := true;
		END IF;
	END IF;
	IF ends > 0 THEN
		-- The time of a unit less than the burst, as shaper.BucketRate.Times has it.
		fraction := (new_burst - 1) * (new_unit::numeric * new_parts + new_unit_part);
		level := greatest(level, CASE WHEN fraction >= longest::numeric * new_parts THEN ARRAY[ends + longest, 0]
			ELSE ARRAY[ends + div(fraction, new_parts)::bigint, mod(fraction, new_parts)::bigint] END);
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
	b.version := greatest(b.version, new_version);
	b.unit := new_unit;
	b.unit_part := new_unit_part;
	b.parts := new_parts;
	b.burst := new_burst;
	b.hold := ends;
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

-- Migrate replaces functions whose version is lower than this one, or missing, and no others.
-- A change of a function comes with the next number.
COMMENT ON FUNCTION leaky_buckets_take IS 'pgbucket v2';

// fixed:EPS:WIDTH:WORLD: integers of one step; the wire is that of codecs/fixed.cpp. Coded sums are integer
// sums, which wrap.
#pragma once
#include "codecs/blocks/portable.h"
#include "codecs/fixed_setting.h"
#include "cuda/blocks_program.h"

namespace gpucomm::cuda {

// Of four elements, a word of coded bytes for each 8 bits of width.
template <class T>
struct Fixed {
  static constexpr unsigned kTiles = 4, kWords = sizeof(T);
  struct Raw {
    uint32_t at[kWords];
  };
  struct Shared {};
  float step, inverse, limit, stray;

  static Fixed make(const char* argument) {
    const FixedSetting setting = parse_fixed(argument).value();
    return {setting.step(), 1 / setting.step(), setting.limit(), setting.stray()};
  }

  template <bool kFull>
  static GPUCOMM_PROGRAM Raw fetch(const Message& message, const Tile& tile, unsigned lane) {
    const std::byte* at = message.bytes + tile.number * kTile * kWords + lane * sizeof(Raw);
    Raw raw;
    if constexpr (kFull && kWords == 1) {
      raw.at[0] = load<uint32_t>(at);
    } else if constexpr (kFull) {
      for (unsigned i = 0; i < kWords; i += 2) {
        const auto words = load<Words2>(at + 4 * i);
        raw.at[i] = words.at[0], raw.at[i + 1] = words.at[1];
      }
    } else {
      raw = {};
      for (unsigned i = 0; i < kPerLane; ++i)
        if (i < left(tile, lane)) set(raw, i, static_cast<uint32_t>(load<T>(at + i * sizeof(T))));
    }
    return raw;
  }
  template <bool kFull>
  static GPUCOMM_PROGRAM void put(const Message& message, const Tile& tile, unsigned lane, const Raw& raw) {
    std::byte* at = message.bytes + tile.number * kTile * kWords + lane * sizeof(Raw);
    if constexpr (kFull && kWords == 1) {
      store(at, raw.at[0]);
    } else if constexpr (kFull) {
      for (unsigned i = 0; i < kWords; i += 2) store(at + 4 * i, Words2{raw.at[i], raw.at[i + 1]});
    } else {
      for (unsigned i = 0; i < kPerLane; ++i)
        if (i < left(tile, lane)) store(at + i * sizeof(T), get(raw, i));
    }
  }
  // The lane's elements.
  static GPUCOMM_PROGRAM unsigned left(const Tile& tile, unsigned lane) {
    const unsigned begin = lane * kPerLane;
    return tile.count > begin ? tile.count - begin : 0;
  }

  static GPUCOMM_PROGRAM T get(const Raw& raw, unsigned i) {
    return static_cast<T>(raw.at[i * kWords / 4] >> (8 * (i * kWords % 4)));
  }
  static GPUCOMM_PROGRAM void set(Raw& raw, unsigned i, uint32_t value) {
    constexpr uint32_t kMask = ~0u >> (32 - 8 * kWords);
    raw.at[i * kWords / 4] |= (value & kMask) << (8 * (i * kWords % 4));
  }

  template <bool kFull, class Exec>
  GPUCOMM_PROGRAM bool decode(const Exec& ex, Shared&, typename Exec::template Lanes<Raw>& raw, const Tile&,
                              typename Exec::template Lanes<Four>& x) const {
    ex.each([&](unsigned lane) {
      for (unsigned i = 0; i < kPerLane; ++i) x[lane].at[i] = static_cast<float>(get(raw[lane], i)) * step;
    });
    return true;
  }

  template <bool kFull, class Exec>
  GPUCOMM_PROGRAM void encode(const Exec& ex, Shared&, typename Exec::template Lanes<Four>& x,
                              const Tile& tile, const Message& message, Status* status) const {
    const auto beyond = [&](uint32_t magnitude) { return magnitude > blocks::bits_of(limit); };  // as NaN is
    typename Exec::template Lanes<Four> q;
    ex.each([&](unsigned lane) {
      Raw raw = {};
      for (unsigned i = 0; i < kPerLane; ++i) {
        const float whole = blocks::nearest_of_any(x[lane].at[i] * inverse);
        const bool fits = !beyond(blocks::bits_of(whole) & blocks::kMagnitudeBits);
        set(raw, i, static_cast<uint32_t>(static_cast<int32_t>(fits ? whole : 0)));
        q[lane].at[i] = whole;
      }
      put<kFull>(message, tile, lane, raw);
    });
    if (ex.any([&](unsigned lane) { return beyond(largest_bits(q[lane])); }))
      refuse(ex, x, q, tile, status, beyond);
  }
};

// into += from, both coded.
template <class T, class Exec>
struct AddCoded {
  const Exec& ex;
  size_t count, coded_bytes;
  const std::byte* from;
  std::byte* into;
  Status* status;

  GPUCOMM_PROGRAM void run() const {
    if (!check_size(ex, from, coded_bytes, status) || !check_size(ex, into, coded_bytes, status)) return;
    walk<Fixed<T>::kTiles>(ex, Dense{into, count, Kind::float32, true}, *this);
  }

  template <unsigned kTiles, Access kAccess>
  GPUCOMM_PROGRAM void run(size_t first) const {
    constexpr bool kFull = kAccess != Access::some;
    typename Exec::template Lanes<typename Fixed<T>::Raw> a[kTiles], b[kTiles];
    const auto tile = [&](unsigned t) {
      const size_t left = count - (first + t) * kTile;
      return Tile{first + t, left < kTile ? static_cast<unsigned>(left) : kTile};
    };
    const auto message = [&](const std::byte* slot) {
      return Message{const_cast<std::byte*>(slot) + kHeader, count};
    };
    ex.each([&](unsigned lane) {
#pragma unroll
      for (unsigned t = 0; t < kTiles; ++t) {
        a[t][lane] = Fixed<T>::template fetch<kFull>(message(into), tile(t), lane);
        b[t][lane] = Fixed<T>::template fetch<kFull>(message(from), tile(t), lane);
      }
    });
    ex.each([&](unsigned lane) {
#pragma unroll
      for (unsigned t = 0; t < kTiles; ++t) {
        typename Fixed<T>::Raw sum = {};
        for (unsigned i = 0; i < kPerLane; ++i) {
          const auto x = static_cast<uint32_t>(Fixed<T>::get(a[t][lane], i));
          Fixed<T>::set(sum, i, x + static_cast<uint32_t>(Fixed<T>::get(b[t][lane], i)));
        }
        Fixed<T>::template put<kFull>(message(into), tile(t), lane, sum);
      }
    });
  }
};

}  // namespace gpucomm::cuda

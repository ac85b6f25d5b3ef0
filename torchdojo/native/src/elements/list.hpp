// A list of element types that the compiler unrolls: `List<Joints, Contacts>::each([](auto element) { element.prepare(...); })`.
#pragma once

namespace torchdojo {

template <class... Elements>
struct List {
    template <class F>
    static inline void each(F &&f) {
        (f(Elements{}), ...);
    }
};

}  // namespace torchdojo
